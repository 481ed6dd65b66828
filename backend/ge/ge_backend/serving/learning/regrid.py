"""Which buckets to have instead: more of them for sizes that have none, or others for traffic.

Pure. Both go by the buckets that are served with now, so a grid never comes to hold more than its
configuration allowed: `extended` keeps to `max_elements`, `relearned` to as many as there are.
The cost of a row is the measured cost of a run divided by its rows, at the rows and other sizes
that traffic has on average; between measured sizes it is interpolated.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from ge_backend.errors import ConfigError
from ge_backend.serving.learning.boundaries import SizeCost, best_boundaries, expect
from ge_backend.shapes.buckets.axis import ROWS
from ge_backend.shapes.buckets.costs import DynamicCosts
from ge_backend.shapes.buckets.grid import Bucket, covers, listed_grid
from ge_backend.shapes.buckets.prune import prune
from ge_backend.shapes.traffic.histogram import SizeHistogram, independent_shapes
from ge_backend.tensors import Shape

__all__ = [
    "MIN_SAVING",
    "at_least",
    "extended",
    "mean_of",
    "relearned",
    "row_costs",
    "size_cost",
    "up_to",
]

# Fewer rows than this say nothing about traffic.
MIN_ROWS = 200
# New boundaries are worth their preparation from this share of expected cost saved.
MIN_SAVING = 0.05


def extended(
    buckets: Collection[Bucket],
    sizes: Shape,
    limits: Mapping[str, int],
    axes: Sequence[str],
    max_elements: int,
) -> list[Bucket]:
    """Return the buckets to add so that these sizes are covered, one for each row count.

    None where some bucket covers them already. An axis that is too short is doubled until it
    covers, up to the graph's own limit; row counts that would take a bucket beyond `max_elements`
    are left out.

    Args:
        buckets: those of now.
        sizes: of a request, one per axis.
        limits: what the graph itself takes, by axis name.
        axes: the names.
        max_elements: the most that one bucket may have; 0 is no limit.

    Raises:
        ConfigError: the graph takes no such size, or no bucket of it is within `max_elements`.
    """
    if any(covers(bucket[1:], sizes) for bucket in buckets):
        return []
    rows, *columns = _columns(buckets)
    goal = tuple(
        _next_size(size, column, limits.get(name), name)
        for name, size, column in zip(axes, sizes, columns, strict=True)
    )
    within = [r for r in rows if not max_elements or r * math.prod(goal) <= max_elements]
    if not within:
        named = " ".join(f"{name}={size}" for name, size in zip(axes, goal, strict=True))
        raise ConfigError(
            f"a bucket of {named} would have more than {max_elements} elements; raise max_elements"
        )
    return [(count, *goal) for count in within]


def relearned(
    costs: Mapping[Bucket, float], traffic: Mapping[str, SizeHistogram], axes: Sequence[str]
) -> list[Bucket]:
    """Return the buckets that traffic wants in place of those of now; none if it saves too little.

    Row counts stay, and so does the largest size of each axis. There are at most as many buckets
    as now, and none has more elements than the largest of now.

    Args:
        costs: nanoseconds of a run by bucket, for the buckets of now.
        traffic: sizes by axis, `rows` among them.
        axes: the names of the ragged axes.

    Raises:
        ConfigError: the sizes of now are too irregular: no grid within these bounds has all of
            the best ones.
    """
    rows, *columns = _columns(costs)
    best, gains = [rows], False
    prices = row_costs(costs, traffic, axes, rows[-1])
    for name, values in zip(axes, columns, strict=True):
        seen = up_to(traffic[name], values[-1])
        if seen.total < MIN_ROWS:
            return []
        price = prices[name]
        fresh = best_boundaries(seen, len(values), price, maximum=values[-1])
        before = expect(seen, values, price).cost
        pays = expect(seen, fresh, price).cost <= before * (1.0 - MIN_SAVING)
        gains = gains or pays
        best.append(list(fresh) if pays else values)
    if not gains:
        return []
    grid = listed_grid((ROWS, *axes), itertools.product(*best))
    grid = grid.within(max(map(math.prod, costs)))
    if len(grid.entries) > len(costs):
        grid = prune(grid, len(costs), independent_shapes([traffic[name] for name in grid.names]))
    return list(grid.entries)


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


def _columns(buckets: Collection[Bucket]) -> list[list[int]]:
    """Return what values the buckets have in each place, ascending."""
    return [sorted(set(values)) for values in zip(*buckets, strict=True)]


def _next_size(size: int, values: Sequence[int], graph_limit: int | None, name: str) -> int:
    """Return the smallest value that covers a size, or a new one beyond the largest."""
    at = bisect_left(values, size)
    if at < len(values):
        return values[at]
    if graph_limit is not None and size > graph_limit:
        raise ConfigError(f"axis {name!r}: requests are beyond the graph's limit of {graph_limit}")
    limit = values[-1]
    while limit < size:
        limit *= 2
    return limit if graph_limit is None else min(limit, graph_limit)
