"""How much memory the machine has, and how much of it is available."""

from __future__ import annotations

import ctypes
from pathlib import Path

from ge_backend.config.sizes import format_bytes
from ge_backend.device.base import MemoryInfo
from ge_backend.errors import OutOfMemory

__all__ = ["check_room", "give_back_freed", "host_memory", "read_memory"]

# What is smaller is not worth asking the system for.
SMALL_BYTES = 64 << 20


def host_memory() -> MemoryInfo:
    """Return the machine's available and total memory now."""
    return read_memory(Path("/proc/meminfo").read_text())


def check_room(nbytes: int, what: str) -> None:
    """See that so much can be allocated: the system promises more than it has, and then kills.

    Raises:
        OutOfMemory: it cannot; names `what`, and what there is.
    """
    if nbytes < SMALL_BYTES:
        return
    free = host_memory().free_bytes
    if nbytes > free:
        raise OutOfMemory(
            f"{what} takes {format_bytes(nbytes)}, and the machine has {format_bytes(free)} left"
        )


def give_back_freed() -> None:
    """Give the system back what the C library keeps of memory that is free again.

    It is worth it after something large has been made by way of copies. Other C libraries than
    glibc have no such call. Source: malloc_trim(3).
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def read_memory(meminfo: str) -> MemoryInfo:
    """Return the figures of a `/proc/meminfo` text."""
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    free, total = (int(fields[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
    return MemoryInfo(free_bytes=free, total_bytes=total)
