"""Memory that a step gave back stays with the process, for the next step."""

from __future__ import annotations

import contextlib
import ctypes

__all__ = ["keep_freed_memory"]

# mallopt(3), malloc.h; 32 MiB is the largest threshold that glibc takes on 64 bits.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_MMAP_THRESHOLD, NEVER = 32 << 20, 2**31 - 1


def keep_freed_memory() -> None:
    """Have glibc keep what is freed; does nothing with another C library.

    By default blocks above a threshold go back to the system as soon as they are freed, and the
    next step pays for each of their pages again: a step of 32 texts took 1.1 times as long
    (`python -m benchmarks.language_steps`, with and without `--default-heap`).
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, NEVER)
