"""A model's devices: who runs what, and what becomes of a lost one."""
