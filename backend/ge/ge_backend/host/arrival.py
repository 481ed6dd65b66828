"""A request of the host as it came to this stub: when, and until when it must begin to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["LONGEST_TIMEOUT_US", "Arrival"]

# A year, instead of whatever longer time a client says: deadlines are added to and sent as numbers
# of 64 bits.
LONGEST_TIMEOUT_US = 366 * 24 * 3600 * 10**6


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """A request and its times, nanoseconds of CLOCK_MONOTONIC; `deadline_ns` 0 is no deadline."""

    request: Any
    came_ns: int
    deadline_ns: int

    @classmethod
    def of(cls, request: Any, now_ns: int, default_timeout_us: int) -> Arrival:
        """Return a request that has just come, with the client's `timeout` or a shorter default."""
        own_us = request.timeout()
        if not (own_us or default_timeout_us):
            return cls(request, now_ns, 0)
        shortest_us = min(us for us in (own_us, default_timeout_us) if us)
        return cls(request, now_ns, now_ns + 1000 * min(shortest_us, LONGEST_TIMEOUT_US))

    @property
    def time_said(self) -> str:
        """What a message says of the time that it had: a client may take it for milliseconds."""
        return f"its timeout is {(self.deadline_ns - self.came_ns) // 1000} microseconds"

    @property
    def rows(self) -> int:
        """The first size of its first input, which counts against the model's batch size."""
        inputs = self.request.inputs()
        shape = inputs[0].shape() if inputs else ()
        return int(shape[0]) if shape else 1
