"""What a stub holds of an executor."""
