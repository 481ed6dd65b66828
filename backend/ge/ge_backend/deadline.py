"""Until when a request has to begin: nanoseconds of CLOCK_MONOTONIC, 0 is no deadline.

Who holds a request keeps its deadline: a queue that it waits in, an executor until it runs, and the
stub while no executor shows life. What its time is `over` for ends with `DeadlineExceeded`.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["earliest", "left_s", "over"]


def over(deadline_ns: int, now_ns: int) -> bool:
    """Whether a request's time has passed."""
    return 0 < deadline_ns <= now_ns


def earliest(deadlines_ns: Iterable[int]) -> int:
    """Return which of several requests' deadlines passes first; 0 if none has one."""
    return min(filter(None, deadlines_ns), default=0)


def left_s(deadline_ns: int, now_ns: int) -> float | None:
    """Return how long may be waited for it, as `threading` takes it: seconds, None for ever."""
    return max(0, deadline_ns - now_ns) / 1e9 if deadline_ns else None
