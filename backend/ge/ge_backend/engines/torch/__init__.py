"""Torch programs, on the CPU and on accelerators."""
