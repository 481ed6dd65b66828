"""Processes, as the kernel shows them."""

from fixtures.processes import processes

__all__ = ["processes"]
