"""What a load generator collects while it runs, and the comparison with the truth afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.pool import Pool
from benchmarks.rivals.forward import Rows

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """Collects answers as they come: times for all of them, bytes for those that are checked."""

    pool: Pool
    ends: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    kept: list[tuple[int, bytes]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add(self, position: int, started: float, answer: bytes, *, failed: bool) -> None:
        """Note one answer."""
        now = time.perf_counter()
        self.ends.append(now)
        self.latencies.append(now - started)
        if failed:
            self.errors.append(answer[:500].decode(errors="replace"))
        elif position in self.pool.answers:
            self.kept.append((position, answer))

    def check(self, embedding: Callable[[bytes], Rows]) -> None:
        """Compare what was kept with the truth."""
        for position, answer in self.kept:
            expected, got = self.pool.answers[position], embedding(answer)
            if got.shape != expected.shape:
                self.errors.append(f"row {position}: shape {got.shape}, expected {expected.shape}")
            elif not (worst := np.abs(got - expected).max()) <= self.pool.tolerance:
                self.errors.append(f"row {position}: off by {worst:.1e}")
