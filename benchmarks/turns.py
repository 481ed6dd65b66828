"""Ways to do the same that take turns, so that whatever else the machine does hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

__all__ = ["fastest_ms"]


def fastest_ms(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return milliseconds of each way's fastest turn."""
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, run in ways.items():
            begun = time.perf_counter()
            run()
            found[name] = min(found[name], (time.perf_counter() - begun) * 1e3)
    return found
