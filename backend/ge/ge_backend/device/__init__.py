"""What a device is: its seam, its memory, the machine around it; nothing of any vendor."""
