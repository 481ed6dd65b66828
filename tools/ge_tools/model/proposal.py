"""What other boundaries would make of an axis' traffic: the figures of `ge-backend tune`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ge_backend.serving.learning.boundaries import Expectation, SizeCost, best_boundaries, expect
from ge_backend.serving.learning.regrid import MIN_SAVING
from ge_backend.shapes.traffic.histogram import SizeHistogram

__all__ = ["Option", "Proposal", "propose"]

# Numbers of boundaries that are worked out beside the one asked for.
ORIENTATION = (2, 4, 8, 16)


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
