"""How much memory the machine or this container has, and how much of it is available."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ge_backend.device.base import MemoryInfo
from ge_backend.device.machine.control_groups import control_groups, read_text
from ge_backend.errors import OutOfMemory
from ge_backend.model.config.sizes import format_bytes
from ge_backend.tensors import Array

__all__ = ["check_room", "give_back_freed", "host_memory", "read_memory", "small_page_zeros"]

# It is not worth asking the system for less.
SMALL_BYTES = 64 << 20
# A control group's files: its limit, the memory that it uses, and the name in its `memory.stat` of
# the part of that which is pages of files that have not been used for a while. No limit is "max",
# or a huge number in version 1.
VERSION_2 = ("memory.max", "memory.current", "inactive_file")
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def host_memory(root: Path = Path("/")) -> MemoryInfo:
    """Return the available and the total memory now, of the machine or of a control group.

    The group that has least left counts: at its limit the kernel ends a process of it, however much
    the machine has. It takes less than 1 ms.

    Args:
        root: where `proc` and `sys` are looked for; another one in tests.
    """
    machine = read_memory((root / "proc/meminfo").read_text())
    all_ = [machine, *_limits(root)]
    return MemoryInfo(
        free_bytes=min(each.free_bytes for each in all_),
        total_bytes=min(each.total_bytes for each in all_),
    )


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
            f"{what} takes {format_bytes(nbytes)}, and the machine has {format_bytes(free)} left "
            "(the limit of a container counts)"
        )


def give_back_freed() -> None:
    """Give the system back what the C library keeps of memory that is free again.

    It is worth it after something large has been made by way of copies. Other C libraries than
    glibc have no such call. Source: malloc_trim(3).
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def small_page_zeros(nbytes: int) -> Array:
    """Return UINT8 zeros, at least one, that take memory page by page as they are written.

    In an executor glibc asks the system for huge pages, of 2 MiB each: what is written here and
    there takes all of its memory at once then. Source: madvise(2).

    Raises:
        MemoryError: the system has no room for them.
    """
    try:
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for {format_bytes(nbytes)}: {error.strerror}") from error
    with contextlib.suppress(OSError):  # a kernel without huge pages knows no such advice
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def read_memory(meminfo: str) -> MemoryInfo:
    """Return the figures of a `/proc/meminfo` text."""
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    free, total = (int(fields[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
    return MemoryInfo(free_bytes=free, total_bytes=total)


def _limits(root: Path) -> Iterator[MemoryInfo]:
    """Yield what each control group may have; files that the kernel would drop count as free.

    Source: Linux Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
    """
    for folder in control_groups(root, "memory"):
        for limit, usage, inactive in (VERSION_2, VERSION_1):
            total, used = (read_text(folder / name).strip() for name in (limit, usage))
            if total.isdecimal() and used.isdecimal():
                stat = dict(line.split() for line in read_text(folder / "memory.stat").splitlines())
                free = int(total) - int(used) + int(stat.get(inactive, 0))
                yield MemoryInfo(free_bytes=max(0, free), total_bytes=int(total))
