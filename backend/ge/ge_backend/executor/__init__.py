"""The process that owns a device, its protocol, and what a stub holds of it."""
