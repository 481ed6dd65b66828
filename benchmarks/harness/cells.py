"""From turns to cells: one per load and system, and how it compares with the best rival. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.harness.figures import median_ratio, percentile
from benchmarks.harness.turns import Load, System, Turn

__all__ = ["Cell", "cells"]

SERVER_ROLES = ("host", "stub", "executor", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One system under one load, in its better layout: medians over the rounds.

    The better layout answers more requests in a closed loop, and has the lower p99 in an open one.

    Attributes:
        p50_ms, p99_ms, most_ms: over the latencies of all rounds.
        late_ms: the load generator's own lateness in an open loop, p99 of the worst round.
        refused: requests per second that were answered 503.
        server_ms, client_ms: CPU milliseconds per request.
        client_share, others: cores that the load generator and the rest of the machine used.
        by_round, p99_by_round: by the round's number.
        moved_bytes: sent and received per request.
        best_x: times the best rival's requests per second, the median of the rounds' ratios.
        p99_x, cpu_x: p99 by the lowest p99 of a rival, and CPU by that of the best rival; without
            rivals these are None.
        memory_mib: of a server that has this system alone; None where it was not measured.
    """

    load: Load
    system: System
    per_s: float
    p50_ms: float
    p99_ms: float
    most_ms: float
    late_ms: float
    refused: float
    server_ms: float
    client_ms: float
    client_share: float
    others: float
    by_round: Mapping[int, float] = field(repr=False)
    moved_bytes: float = 0.0
    best_x: float | None = None
    p99_x: float | None = None
    cpu_x: float | None = None
    memory_mib: float | None = None

    def over(self, other: Cell) -> float:
        """Return how many times another one's requests per second, within the rounds."""
        return median_ratio(self.by_round, other.by_round)


def cells(turns: Iterable[Turn], memory_mib: Mapping[str, float] | None = None) -> list[Cell]:
    """Return a cell per load and system, in the order in which they first occur.

    Args:
        turns: of all rounds.
        memory_mib: by `System.key`.
    """
    loads: dict[Load, dict[str, dict[str, list[Turn]]]] = {}
    for turn in turns:
        layouts = loads.setdefault(turn.load, {}).setdefault(turn.system.name, {})
        layouts.setdefault(turn.system.layout, []).append(turn)
    found = []
    for load, systems in loads.items():
        here = [_better([_cell(own) for own in each.values()]) for each in systems.values()]
        found += _compared(here, load, memory_mib or {})
    return found


def _better(layouts: Sequence[Cell]) -> Cell:
    if layouts[0].load.in_flight:
        return max(layouts, key=lambda cell: cell.per_s)
    return min(layouts, key=lambda cell: cell.p99_ms)


def _compared(here: Sequence[Cell], load: Load, memory_mib: Mapping[str, float]) -> list[Cell]:
    rivals = [cell for cell in here if not cell.system.ours]
    best = max(rivals, key=lambda cell: cell.per_s, default=None)
    least = min((cell.p99_ms for cell in rivals), default=None)
    return [
        replace(
            cell,
            best_x=cell.over(best) if best and load.in_flight else None,
            p99_x=cell.p99_ms / least if least else None,
            cpu_x=cell.server_ms / best.server_ms if best and best.server_ms else None,
            memory_mib=memory_mib.get(cell.system.key),
        )
        for cell in here
    ]


def _cell(turns: Sequence[Turn]) -> Cell:
    reports = [turn.report for turn in turns]
    latencies = [latency for report in reports for latency in report.latencies_ms]
    return Cell(
        load=turns[0].load,
        system=turns[0].system,
        per_s=statistics.median(report.per_s for report in reports),
        p50_ms=percentile(latencies, 50),
        p99_ms=percentile(latencies, 99),
        most_ms=max(latencies),
        late_ms=max(report.late_ms for report in reports),
        refused=statistics.median(report.refused / report.wall_s for report in reports),
        server_ms=_cpu_ms(turns, SERVER_ROLES),
        client_ms=_cpu_ms(turns, ("client",)),
        client_share=statistics.median(r.cpu_s["client"] / r.wall_s for r in reports),
        others=statistics.median(r.cpu_s["others"] / r.wall_s for r in reports),
        moved_bytes=statistics.median(report.moved_bytes for report in reports),
        by_round={turn.round_number: turn.report.per_s for turn in turns},
    )


def _cpu_ms(turns: Sequence[Turn], roles: Sequence[str]) -> float:
    """Return the median of CPU milliseconds per request, by what was answered in that time."""
    return statistics.median(
        1e3 * sum(report.cpu_s.get(role, 0.0) for role in roles) / (report.per_s * report.wall_s)
        for report in (turn.report for turn in turns)
    )
