"""From windows to results: one per mix, concurrency and system, and how ours compares. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import median_ratio, percentile

__all__ = ["CEILING", "OURS", "Result", "Sample", "results"]

CEILING = "ceiling"
OURS = "ge"
SERVER_ROLES = ("host", "stub", "executor", "other", "ceiling")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One window of one system in one layout.

    Attributes:
        layout: how a rival or the ceiling used the cores; "" for ours.
        concurrency: 0 for the ceiling, which has everything at once.
        cpu_s: CPU seconds by role.
    """

    system: str
    layout: str
    mix: str
    concurrency: int
    round_number: int
    throughput: float
    requests: int
    wall_s: float
    latencies_ms: Sequence[float]
    cpu_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the report: medians over the rounds, of the system's better layout.

    Attributes:
        p50_ms, p99_ms: over the latencies of all rounds; None for the ceiling.
        server_cpu_s, client_cpu_s: CPU seconds per 1000 requests.
        others_cpu: cores that the rest of this machine used meanwhile: noise.
        by_round: throughput by the round's number.
    """

    mix: str
    concurrency: int
    system: str
    layout: str
    throughput: float
    p50_ms: float | None
    p99_ms: float | None
    server_cpu_s: float
    client_cpu_s: float
    others_cpu: float
    by_round: Mapping[int, float]

    def over(self, other: Result) -> float:
        """Return how many times the throughput of another one of the same cell this one has.

        The median of the ratios within each round.
        """
        return median_ratio(self.by_round, other.by_round)


def results(samples: Iterable[Sample]) -> list[Result]:
    """Return a result per mix, concurrency and system, in the order in which they first occur."""
    cells: dict[tuple[str, int], dict[str, dict[str, list[Sample]]]] = {}
    for sample in samples:
        cell = cells.setdefault((sample.mix, sample.concurrency), {})
        cell.setdefault(sample.system, {}).setdefault(sample.layout, []).append(sample)
    found: list[Result] = []
    for (mix, concurrency), cell in cells.items():
        if concurrency == 0:
            continue
        compared = cell | cells.get((mix, 0), {})
        bests = (_best(layouts.values()) for layouts in compared.values())
        found += [_result(concurrency, best) for best in bests]
    return found


def _best(layouts: Iterable[list[Sample]]) -> list[Sample]:
    return max(layouts, key=lambda samples: statistics.median(s.throughput for s in samples))


def _result(concurrency: int, best: list[Sample]) -> Result:
    latencies = [latency for sample in best for latency in sample.latencies_ms]
    first = best[0]
    return Result(
        mix=first.mix,
        concurrency=concurrency,
        system=first.system,
        layout=first.layout,
        throughput=statistics.median(sample.throughput for sample in best),
        p50_ms=percentile(latencies, 50) if latencies else None,
        p99_ms=percentile(latencies, 99) if latencies else None,
        server_cpu_s=_per_thousand(best, SERVER_ROLES),
        client_cpu_s=_per_thousand(best, ("client",)),
        others_cpu=statistics.median(s.cpu_s.get("others", 0.0) / s.wall_s for s in best),
        by_round={sample.round_number: sample.throughput for sample in best},
    )


def _per_thousand(samples: list[Sample], roles: Sequence[str]) -> float:
    return statistics.median(
        1000 * sum(sample.cpu_s.get(role, 0.0) for role in roles) / sample.requests
        for sample in samples
    )
