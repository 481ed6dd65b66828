"""What other boundaries would make of an axis' traffic: the figures behind `ge-backend tune`.

Pure. The cost of a row is the measured cost of a run divided by its rows, at the rows and other
sizes that traffic has on average; between measured sizes it is interpolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ge_backend.serving.learning.boundaries import Expectation, SizeCost, best_boundaries, expect
from ge_backend.shapes.buckets.axis import ROWS
from ge_backend.shapes.buckets.costs import DynamicCosts
from ge_backend.shapes.buckets.grid import Bucket
from ge_backend.shapes.traffic.histogram import SizeHistogram

__all__ = [
    "MIN_SAVING",
    "ORIENTATION",
    "Option",
    "Proposal",
    "at_least",
    "mean_of",
    "propose",
    "row_costs",
    "size_cost",
    "up_to",
]

# Numbers of boundaries that are worked out beside the one asked for.
ORIENTATION = (2, 4, 8, 16)
# New boundaries are worth their preparation from this share of expected cost saved.
MIN_SAVING = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Boundaries, and what they make of the traffic."""

    boundaries: tuple[int, ...]
    expected: Expectation


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """An axis with its traffic, its boundaries now, and better ones.

    Attributes:
        others: the best boundaries for other numbers of graphs, fewest first.
        beyond: share of the traffic above the largest boundary of now. In the figures of now it
            runs at its own size, so that they compare.
        unpadded: every row at its own size: what no boundaries can do better than.
    """

    axis: str
    traffic: SizeHistogram
    now: Option
    best: Option
    others: tuple[Option, ...]
    beyond: float
    unpadded: Expectation

    @property
    def pays(self) -> bool:
        """Whether the best boundaries are worth a change, or cover what those of now do not."""
        return self.beyond > 0 or self.saved(self.best) >= MIN_SAVING

    def saved(self, option: Option) -> float:
        """Return the share of now's cost that an option saves; negative if it costs more."""
        before = self.now.expected.cost
        return 1.0 - option.expected.cost / before if before else 0.0


def propose(
    axis: str, traffic: SizeHistogram, now: Sequence[int], graphs: int | None, cost: SizeCost
) -> Proposal:
    """Return what the best boundaries make of an axis' traffic.

    All options cover what `now` covers, and all of the traffic.

    Args:
        axis: the axis' name.
        traffic: its sizes; at least one.
        now: its present boundaries, ascending.
        graphs: how many boundaries to propose; None is as many as now.
        cost: of one row, by size.

    Raises:
        ConfigError: `graphs` is below 1, or there is no traffic.
    """

    def best(count: int) -> Option:
        boundaries = best_boundaries(traffic, count, cost, maximum=now[-1])
        return Option(boundaries=boundaries, expected=expect(traffic, boundaries, cost))

    own = [size for size, _ in traffic.points() if size > now[-1]]
    chosen = best(len(now) if graphs is None else graphs)
    others = {option.boundaries: option for option in map(best, ORIENTATION)}
    others.pop(chosen.boundaries, None)
    return Proposal(
        axis=axis,
        traffic=traffic,
        now=Option(boundaries=tuple(now), expected=expect(traffic, (*now, *own), cost)),
        best=chosen,
        others=tuple(others.values()),
        beyond=expect(traffic, now, cost).uncovered,
        unpadded=expect(traffic, [size for size, _ in traffic.points()], cost),
    )


def row_costs(
    costs: Mapping[Bucket, float],
    traffic: Mapping[str, SizeHistogram],
    axes: Sequence[str],
    most_rows: int,
) -> dict[str, SizeCost]:
    """Return by axis what one row costs by its size there, all else as it is on average.

    Args:
        costs: of a run by bucket; at least one.
        traffic: sizes by axis; without rows runs have as many as they may.
        axes: the names of the ragged axes.
        most_rows: of a run.
    """
    rows = min(mean_of(traffic[ROWS]), most_rows) if ROWS in traffic else most_rows
    sizes = [mean_of(traffic[axis]) for axis in axes]
    return {axis: size_cost(costs, place, rows, sizes) for place, axis in enumerate(axes)}


def size_cost(
    costs: Mapping[Bucket, float], place: int, rows: int, sizes: Sequence[int]
) -> SizeCost:
    """Return what one row costs by its size on one axis, from costs of whole runs.

    Args:
        costs: of a run by bucket; at least one.
        place: which of `sizes` varies.
        rows: how many rows a run has.
        sizes: of all ragged axes; the one at `place` is not read.
    """
    model = DynamicCosts(costs, rows)
    before, after = tuple(sizes[:place]), tuple(sizes[place + 1 :])

    def measured(size: int) -> float:
        return model.cost(rows, (*before, size, *after)) / rows

    first, *more = sorted({bucket[1 + place] for bucket in costs})
    least = measured(first)
    slope = (measured(more[0]) - least) / (more[0] - first) if more else least / max(first, 1)

    def cost(size: int) -> float:
        # Below what was measured it falls on, but never faster than in proportion.
        if size >= first:
            return measured(size)
        return max(least - slope * (first - size), least * size / first)

    return cost


def mean_of(traffic: SizeHistogram) -> int:
    """Return the mean value, rounded, at least 1."""
    total = sum(value * count for value, count in traffic.points())
    return max(round(total / max(traffic.total, 1)), 1)


def at_least(traffic: SizeHistogram, size: int) -> SizeHistogram:
    """Return the traffic as it runs where no size is below this one."""
    if size <= 1:
        return traffic
    raised = SizeHistogram()
    for value, count in traffic.points():
        raised.add(max(value, size), count)
    return raised


def up_to(traffic: SizeHistogram, limit: int | None) -> SizeHistogram:
    """Return the traffic without sizes above a limit."""
    if limit is None or traffic.largest <= limit:
        return traffic
    kept = SizeHistogram()
    for value, count in traffic.points():
        if value <= limit:
            kept.add(value, count)
    return kept
