"""The `ge` backend for Triton Inference Server: static-shape accelerators, unequal traffic."""
