"""How much memory the machine has, and how much of it is available."""

from __future__ import annotations

from pathlib import Path

from ge_backend.device.base import MemoryInfo

__all__ = ["host_memory", "read_memory"]


def host_memory() -> MemoryInfo:
    """Return the machine's available and total memory now."""
    return read_memory(Path("/proc/meminfo").read_text())


def read_memory(meminfo: str) -> MemoryInfo:
    """Return the figures of a `/proc/meminfo` text."""
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    free, total = (int(fields[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
    return MemoryInfo(free_bytes=free, total_bytes=total)
