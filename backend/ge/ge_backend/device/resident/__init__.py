"""Tensors and states that stay on a device between runs."""
