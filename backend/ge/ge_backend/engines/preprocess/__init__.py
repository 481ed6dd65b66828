"""Text and images into tensors, on the CPU."""
