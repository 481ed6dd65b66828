"""Which buckets to have instead: more of them for sizes that have none, or others for traffic.

Pure. Both go by the buckets that are served with now, so a grid never comes to hold more than its
configuration allowed: `extended` keeps to `max_elements`, `relearned` to as many as there are.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from ge_backend.errors import ConfigError
from ge_backend.serving.learning.boundaries import best_boundaries, expect
from ge_backend.serving.learning.tuning import MIN_SAVING, row_costs, up_to
from ge_backend.shapes.buckets.axis import ROWS
from ge_backend.shapes.buckets.grid import Bucket, covers, listed_grid
from ge_backend.shapes.buckets.prune import prune
from ge_backend.shapes.traffic.histogram import SizeHistogram, independent_shapes
from ge_backend.tensors import Shape

__all__ = ["MIN_ROWS", "extended", "relearned"]

# Fewer rows than this say nothing about traffic.
MIN_ROWS = 200


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
