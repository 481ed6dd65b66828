"""What a device of each kind can open."""
