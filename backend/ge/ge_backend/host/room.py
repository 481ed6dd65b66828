"""Whether an answer has room in the memory that this stub shares with the host.

The host says so too late. A sender is closed before it looks for room, so that the request would
never be answered, nor its model be unloaded; and of a list of responses one without room fails all.
Source: python_backend r24.10 src/response_sender.cc; seen on 2.51.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ge_backend.errors import OutOfMemory
from ge_backend.model.config.sizes import format_bytes
from ge_backend.tensors import Array

__all__ = ["Room", "check_room_to_wait"]

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where POSIX shared memory is, by shm_overview(7)
# What the host takes beside a response's tensors: a region grows by whole MiB, and messages lie in
# what is free of it.
MARGIN_BYTES, SMALL_MARGIN_BYTES = 2 << 20, 64 << 10
# What a request that waits leaves to others, and to messages: where one finds no room, the stub
# ends, and mostly the server with it (SIGABRT; seen on 2.51).
WAITING_MARGIN_BYTES = 256 << 10
# How long it counts what the system has said; to ask it for each answer of a batch takes as long as
# all the rest of an answer.
FRESH_NS = 1_000_000


@dataclass(slots=True)
class Room:
    """The memory for answers; used by one thread.

    There is what is free of the stub's region, and what the region can grow by.
    """

    _left: int = 0  # of what it can grow by, as long as that counts
    _until_ns: int = 0

    def check(self, arrays: Collection[Array]) -> None:
        """See that these arrays of a response have room: each in one piece.

        Raises:
            OutOfMemory: they have none.
        """
        sizes = [_text_bytes(one) if one.dtype.hasobject else one.nbytes for one in arrays]
        total, now_ns = sum(sizes), time.monotonic_ns()
        if total > self._left or now_ns >= self._until_ns:
            self._left, self._until_ns = _growth(), now_ns + FRESH_NS
        if total <= self._left:
            self._left -= total
        else:
            _check_region(sizes, self._left)


def _check_region(sizes: Collection[int], growth: int) -> None:
    """See that arrays for which the region cannot grow enough have room in what is free of it."""
    total = sum(sizes)
    region = _region()
    if region is None:  # it is not told
        return
    free = max(0, region.free_memory() - SMALL_MARGIN_BYTES)
    if total > free + growth or max(sizes) > max(free, growth):
        raise OutOfMemory(
            f"the answer takes {format_bytes(total)}, and {SHARED_MEMORY} has "
            f"{format_bytes(free + growth)} left for it; give the server more (--shm-size of a "
            "container), or send less at once"
        )


def check_room_to_wait() -> None:
    """See that there is room for what others send and get while a request waits in this stub.

    Raises:
        OutOfMemory: requests that wait, or others, have taken it.
    """
    if _growth():
        return
    region = _region()
    if region is not None and region.free_memory() < WAITING_MARGIN_BYTES:
        raise OutOfMemory(
            f"{SHARED_MEMORY}, in which requests wait, is full; give the server more (--shm-size "
            "of a container), or send less at once"
        )


def _growth() -> int:
    """Return what the region can grow by."""
    state = os.statvfs(SHARED_MEMORY)
    if not state.f_blocks:  # a tmpfs without a limit has none
        return sys.maxsize
    return max(0, state.f_bavail * state.f_frsize - MARGIN_BYTES)


def _region() -> Any:
    return getattr(sys.modules.get("c_python_backend_utils"), "shared_memory", None)


def _text_bytes(array: Array) -> int:
    """Return what texts take: each has its length before it."""
    return 4 * array.size + sum(map(len, array.flat))
