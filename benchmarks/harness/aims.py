"""What a comparison aims at, and which of that a run has met. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.cells import Cell
from benchmarks.harness.report import aligned

__all__ = ["Aim", "Aims", "judged", "verdicts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aims:
    """Bounds of one comparison.

    Attributes:
        least: times the best rival's requests per second, by requests in flight.
        p99, random_p99: by the lowest p99 of a rival, in closed loops and at random; None: no
            bound.
    """

    least: Mapping[int, float]
    p99: float | None = None
    random_p99: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """One aim, and what one of our systems did."""

    what: str
    ours: str
    found: float
    met: bool


def judged(found: Sequence[Cell], aims: Aims) -> Iterator[Aim]:
    """Yield every aim that these cells say something about, for each of our systems."""
    for cell in found:
        if not cell.system.ours:
            continue
        closed, name = cell.load.in_flight, cell.system.name
        where = f"{cell.load.traffic}, {closed or 'at random'}"
        least = aims.least.get(closed)
        if cell.best_x is not None and least is not None:
            what = f"{where}: requests/s >= {least:.2f}x"
            yield Aim(what=what, ours=name, found=cell.best_x, met=cell.best_x >= least)
        most = aims.p99 if closed else aims.random_p99
        if cell.p99_x is not None and most is not None:
            what = f"{where}: p99 <= {most:.1f}x"
            yield Aim(what=what, ours=name, found=cell.p99_x, met=cell.p99_x <= most)


def verdicts(found: Sequence[Aim]) -> str:
    """Return a table: an aim per line, a column for each of our systems, and how many are met."""
    columns = list(dict.fromkeys(aim.ours for aim in found))
    lines: dict[str, dict[str, str]] = {}
    for aim in found:
        word = "met" if aim.met else "NOT met"
        lines.setdefault(aim.what, {})[aim.ours] = f"{aim.found:.2f} {word}"
    for name in columns:
        own = [aim.met for aim in found if aim.ours == name]
        lines.setdefault("all", {})[name] = f"{sum(own)} of {len(own)} met"
    rows = [[what, *(cells.get(name, "") for name in columns)] for what, cells in lines.items()]
    return aligned([["aim", *columns], *rows], left=("aim",))
