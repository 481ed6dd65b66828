"""What a load generator collects while it runs, and the comparison with the truth afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from benchmarks.harness.pool import Pool
from benchmarks.harness.requests import succeeded, tensors

__all__ = ["Tally"]

REFUSED = b"HTTP/1.1 503"


@dataclass(slots=True)
class Tally:
    """Times of all answers, bytes of those that are checked.

    Attributes:
        ends, latencies_s: of each unit of work, in the order of the answers; a latency counts from
            the moment at which the request was due.
        late_s: how long after it was due a request of an open loop was sent.
        refused: answers of status 503, as a full queue gives them.
    """

    pool: Pool
    ends: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    kept: list[tuple[int, bytes]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add(self, position: int, started: float, now: float, answer: bytes, *, last: bool) -> None:
        """Note one answer; `last` if it is the last of its script."""
        if not succeeded(answer):
            if answer.startswith(REFUSED):
                self.refused.append(now)
            else:
                self.errors.append(answer[:500].decode(errors="replace"))
            return
        if last or not self.pool.whole:
            self.ends.append(now)
            self.latencies_s.append(now - started)
        if last and position in self.pool.answers:
            self.kept.append((position, answer))

    def check(self) -> Iterator[str]:
        """Yield what was kept and is not right."""
        for position, answer in self.kept:
            expected = self.pool.answers[position]
            got = next(iter(tensors(answer).values())).reshape(-1)
            if got.shape != expected.shape:
                yield f"script {position}: shape {got.shape}, expected {expected.shape}"
            elif not (worst := np.abs(got - expected).max()) <= self.pool.tolerance:
                yield f"script {position}: off by {worst:.1e}, {self.pool.tolerance:.1e} allowed"
