"""Memory that two processes map by its descriptor, and letting go of descriptors that came."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable

from ge_backend.errors import OutOfMemory

__all__ = ["close_all", "created", "duplicate", "mapped"]

_REFUSALS = (OSError, OverflowError, ValueError)


def created(name: str, nbytes: int) -> tuple[mmap.mmap, int]:
    """Return new memory of zeros and its descriptor, which the caller closes.

    Args:
        name: seen in listings of what a process has mapped.
        nbytes: its size.

    Raises:
        OutOfMemory: the system has none left, or refuses the mapping.
    """
    descriptor = -1
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(descriptor, nbytes)
        return mmap.mmap(descriptor, nbytes), descriptor
    except _REFUSALS as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise _refused(nbytes, error) from error


def mapped(descriptor: int, nbytes: int, access: int = mmap.ACCESS_DEFAULT) -> mmap.mmap:
    """Map the first bytes of what a peer created; the descriptor stays the caller's.

    Raises:
        OutOfMemory: the system refuses the mapping.
    """
    try:
        return mmap.mmap(descriptor, nbytes, access=access)
    except _REFUSALS as error:
        raise _refused(nbytes, error) from error


def duplicate(descriptor: int) -> int:
    """Return another descriptor of the same, which the caller closes.

    Raises:
        OutOfMemory: the process may have no more.
    """
    try:
        return os.dup(descriptor)
    except OSError as error:
        raise OutOfMemory(f"no descriptor is left: {error}; raise RLIMIT_NOFILE") from error


def close_all(descriptors: Iterable[int]) -> None:
    """Close what came with a message."""
    for descriptor in descriptors:
        os.close(descriptor)


def _refused(nbytes: int, error: Exception) -> OutOfMemory:
    return OutOfMemory(f"cannot map {nbytes} bytes of shared memory: {error}")
