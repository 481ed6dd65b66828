"""What serving takes for granted of a model, and whether it holds of this one."""
