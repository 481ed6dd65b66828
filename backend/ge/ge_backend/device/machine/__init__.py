"""The machine around a device: cores, memory, threads, search paths."""
