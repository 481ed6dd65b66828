"""Everything that touches Triton's Python API."""
