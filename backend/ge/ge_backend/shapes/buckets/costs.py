"""What a run costs: the table that warm-up measured, and what it says about other shapes.

Costs are nanoseconds of one run. The planner sees a `CostModel`: the row counts worth trying and,
for given sizes, the cost of running that many rows. Two kinds: an engine that runs in prepared
shapes pays for the cheapest bucket that covers the rows; a dynamic one pays for the rows' own
shape, interpolated between measured points. Both are pure and answer from memory.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

import numpy as np

from ge_backend.shapes.buckets.grid import Bucket, covers, label
from ge_backend.tensors import Shape

__all__ = [
    "MAX_SHAPES",
    "CostModel",
    "DynamicCosts",
    "ShapeCache",
    "StaticCosts",
    "bounded_costs",
    "element_costs",
]

# What a run costs beside its elements when nothing was measured, in elements.
RUN_OVERHEAD_ELEMENTS = 64
# Distinct sizes remembered per model; beyond that the memory starts afresh.
REMEMBERED_SIZES = 4096
# Far more than a grid has, so that rounding up costs next to nothing, and few enough for memory.
MAX_SHAPES = 1024


class CostModel(Protocol):
    """What the planner asks. A run never costs less with more rows.

    Attributes:
        steps: the row counts worth trying, ascending; the last is the most that one run takes.
        limits: the largest size of each padded axis that is prepared or was measured.
    """

    steps: tuple[int, ...]
    limits: Shape

    def covers(self, sizes: Shape) -> bool:
        """Whether a row of these sizes is within what was prepared or measured."""

    def by_step(self, sizes: Shape) -> list[tuple[int, float]]:
        """Return (rows, cost) of rows of these sizes for each step that can run. Not yours."""

    def cost(self, rows: int, sizes: Shape) -> float:
        """Return the cost of running any number of rows up to the last step."""

    def bucket(self, rows: int, sizes: Shape) -> Bucket | None:
        """Return the shape to run in, never smaller than asked; None when nothing covers it."""

    def label(self, bucket: Bucket) -> str:
        """Return a name for a shape to count under; there are no more names than buckets."""

    def observe(self, bucket: Bucket, run_ns: float, *, alone: bool = False) -> None:
        """Take note of what a run in this shape took; a table that stays as it is does not."""
        del bucket, run_ns, alone

    def expected(self, cost_ns: float, *, alone: bool) -> float:
        """Return how long a run of this cost takes, if perhaps it has the whole device."""
        del alone
        return cost_ns


def element_costs(buckets: list[Bucket]) -> dict[Bucket, float]:
    """Return costs for buckets that were not measured: one nanosecond per element and per run."""
    return {bucket: float(math.prod(bucket) + RUN_OVERHEAD_ELEMENTS) for bucket in buckets}


def bounded_costs(
    costs: Mapping[Bucket, float], by: Mapping[Bucket, float], *, packed: bool
) -> dict[Bucket, float]:
    """Return costs none of which is above that of a bucket with at least as much to do.

    What comes between makes a measurement longer, never shorter: the least of many is nearest to
    the truth. Packed rows lie end to end, so there a bucket with as many elements has as much to
    do, if its rows are as long; where rows are padded it is one that covers the other.
    """
    if not by:
        return dict(costs)
    work = _packed_work if packed else tuple
    others, known = np.array([work(bucket) for bucket in by]), np.array([*by.values()])
    return {
        bucket: float(known[(others >= work(bucket)).all(axis=1)].min(initial=cost))
        for bucket, cost in costs.items()
    }


@dataclass(slots=True)
class StaticCosts(CostModel):
    """For engines that run in prepared shapes: exact for any table.

    Source: TurboTransformers (PPoPP'21) plans with such a table; the closure over covering buckets
    makes the recurrence exact for tables that are not monotonic.

    Attributes:
        free: what rows cost that no bucket covers, in their own shape: of engines that take any,
            each of which costs them time, and memory for ever. None where they do not run.
    """

    table: Mapping[Bucket, float]
    free: CostModel | None = None
    steps: tuple[int, ...] = field(init=False)
    limits: Shape = field(init=False)
    _columns: list[list[int]] = field(init=False)
    _by_sizes: dict[Shape, tuple[list[tuple[int, float]], list[Bucket]]] = field(
        init=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        rows, *sizes = zip(*self.table, strict=True)
        self.steps = tuple(sorted(set(rows)))
        self._columns = [sorted(set(column)) for column in sizes]
        self.limits = _limits(self.table)

    def covers(self, sizes: Shape) -> bool:
        """Whether some bucket covers one row of these sizes."""
        return bool(self._look_up(sizes)[0])

    def by_step(self, sizes: Shape) -> list[tuple[int, float]]:
        """Return per step the cost of the cheapest bucket that covers it, where one does."""
        own = self._look_up(sizes)[0]
        return own if own or self.free is None else self.free.by_step(sizes)

    def cost(self, rows: int, sizes: Shape) -> float:
        """Return the cost of the cheapest bucket that covers these rows; inf where none runs."""
        by_step = self._look_up(sizes)[0]
        at = bisect_left(self.steps, rows)
        if at < len(by_step):
            return by_step[at][1]
        return math.inf if self.free is None else self.free.cost(rows, sizes)

    def bucket(self, rows: int, sizes: Shape) -> Bucket | None:
        """Return the cheapest bucket that covers these rows, else their own shape, or None."""
        buckets = self._look_up(sizes)[1]
        at = bisect_left(self.steps, rows)
        if at < len(buckets):
            return buckets[at]
        return None if self.free is None else self.free.bucket(rows, sizes)

    def label(self, bucket: Bucket) -> str:
        """Return `8x64`; of a shape of its own what that is called."""
        if self.free is None or bucket in self.table:
            return label(bucket)
        return self.free.label(bucket)

    def _look_up(self, sizes: Shape) -> tuple[list[tuple[int, float]], list[Bucket]]:
        known = self._by_sizes.get(sizes)
        if known is None:
            if len(self._by_sizes) >= REMEMBERED_SIZES:
                self._by_sizes.clear()
            # What covers these covers the buckets' own sizes at or above them, of which few exist.
            rounded = tuple(map(_rounded_up, self._columns, sizes))
            known = self._by_sizes.get(rounded) or self._covering(rounded)
            self._by_sizes[rounded] = self._by_sizes[sizes] = known
        return known

    def _covering(self, sizes: Shape) -> tuple[list[tuple[int, float]], list[Bucket]]:
        """Walk the steps downwards, so that a step also sees every bucket with more rows."""
        cheapest: dict[int, tuple[float, Bucket]] = {}
        for bucket, cost in self.table.items():
            if covers(bucket[1:], sizes):
                entry = cost, bucket
                cheapest[bucket[0]] = min(cheapest.get(bucket[0], entry), entry)
        costs: list[tuple[int, float]] = []
        buckets: list[Bucket] = []
        best: tuple[float, Bucket] | None = None
        for step in reversed(self.steps):
            best = min(filter(None, (cheapest.get(step), best)), default=None)
            if best is not None:
                costs.append((step, best[0]))
                buckets.append(best[1])
        return costs[::-1], buckets[::-1]


class ShapeCache:
    """The shapes that an engine which runs any has been given: each costs it memory for ever.

    Never more than a number that a larger one covers.

    Args:
        most: how many.
        least: the fewest rows and the smallest sizes that it takes; none for any.
    """

    def __init__(self, most: int = MAX_SHAPES, least: Shape = ()) -> None:
        self._most = most
        self._least = least
        self._shapes: set[Bucket] = set()
        self._rounded: dict[Bucket, Bucket] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._shapes)

    def shape(self, wanted: Bucket) -> Bucket:
        """Return the shape to run in: the one that is wanted, or a known one that covers it.

        What none covers is larger than all there were, and runs as it is. Nothing is below `least`.
        """
        if self._least:
            wanted = tuple(map(max, wanted, self._least))
        if wanted in self._shapes:
            return wanted
        if len(self._shapes) >= self._most:
            known = self._rounded.get(wanted) or self._covering(wanted)
            if known is not None:
                return known
        self._shapes.add(wanted)
        self._rounded.clear()
        return wanted

    def _covering(self, wanted: Bucket) -> Bucket | None:
        covering = (shape for shape in self._shapes if covers(shape, wanted))
        known = min(covering, key=math.prod, default=None)
        if known is not None:
            if len(self._rounded) >= self._most:
                self._rounded.clear()
            self._rounded[wanted] = known
        return known


@dataclass(slots=True)
class DynamicCosts(CostModel):
    """For engines that run any shape: interpolated between measured points.

    Between two points the cost is linear in the product of the sizes, and linear in rows; beyond
    the last point it goes on in proportion. Where a smaller shape measured slower than a larger
    one, which is noise, it counts as much as the larger one.

    Attributes:
        max_rows: the most rows of a run.
        max_elements: the most elements of a run of several rows, rows times sizes; 0 is no limit.
        shapes: those that the engine has run in; they are bounded.
    """

    table: Mapping[Bucket, float]
    max_rows: int
    max_elements: int = 0
    shapes: ShapeCache = field(default_factory=ShapeCache)
    steps: tuple[int, ...] = field(init=False)
    limits: Shape = field(init=False)
    _rows: list[int] = field(init=False)
    _grid: list[list[int]] = field(init=False)
    _curves: list[tuple[list[int], list[float]]] = field(init=False)
    _labels: dict[Bucket, str] = field(init=False)
    _by_sizes: dict[Shape, tuple[list[float], list[tuple[int, float]], bool, int]] = field(
        init=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        self.limits = _limits(self.table)
        self.steps = _dynamic_steps(self.max_rows)
        self._rows = sorted({bucket[0] for bucket in self.table})
        self._grid = [sorted(set(values)) for values in zip(*self.table, strict=True)]
        self._curves = [self._curve(rows) for rows in self._rows]
        self._labels = {bucket: label(bucket) for bucket in self.table}

    def covers(self, sizes: Shape) -> bool:
        """Whether the sizes are within what was measured."""
        return self._look_up(sizes)[2]

    def by_step(self, sizes: Shape) -> list[tuple[int, float]]:
        """Return the interpolated cost per step that is within `max_elements`."""
        return self._look_up(sizes)[1]

    def cost(self, rows: int, sizes: Shape) -> float:
        """Return the interpolated cost; inf beyond `max_elements`."""
        measured, _, _, most = self._look_up(sizes)
        return _interpolate(self._rows, measured, rows) if rows <= most else math.inf

    def bucket(self, rows: int, sizes: Shape) -> Bucket | None:
        """Return the rows' own shape; once there were very many, a known one that covers it."""
        return self.shapes.shape((rows, *sizes))

    def label(self, bucket: Bucket) -> str:
        """Return the measured point at or above the shape, `8x64`: shapes themselves are many."""
        point = tuple(
            [
                values[min(bisect_left(values, size), len(values) - 1)]
                for values, size in zip(self._grid, bucket, strict=True)
            ]
        )
        return self._labels.get(point) or label(point)  # no point of the table where it has holes

    def _look_up(self, sizes: Shape) -> tuple[list[float], list[tuple[int, float]], bool, int]:
        """Return costs at the measured rows and at the steps, whether measured, the most rows."""
        known = self._by_sizes.get(sizes)
        if known is None:
            if len(self._by_sizes) >= REMEMBERED_SIZES:
                self._by_sizes.clear()
            elements = math.prod(sizes)
            curves = (_interpolate(xs, ys, elements) for xs, ys in self._curves)
            measured = list(accumulate(curves, max))
            most = self._most_rows(elements)
            steps = [
                (step, _interpolate(self._rows, measured, step))
                for step in self.steps
                if step <= most
            ]
            within = all(size <= most for size, most in zip(sizes, self.limits, strict=True))
            known = self._by_sizes[sizes] = (measured, steps, within, most)
        return known

    def _most_rows(self, elements: int) -> int:
        """Return how many rows of this many elements a run takes: one is always possible."""
        if not self.max_elements:
            return self.max_rows
        return min(self.max_rows, max(1, self.max_elements // max(1, elements)))

    def _curve(self, rows: int) -> tuple[list[int], list[float]]:
        """Return elements per row and costs of the points with this many rows, both ascending."""
        points: dict[int, float] = {}
        for bucket, cost in self.table.items():
            if bucket[0] == rows:
                elements = math.prod(bucket[1:])
                points[elements] = max(cost, points.get(elements, 0.0))
        xs = sorted(points)
        costs = list(accumulate((points[x] for x in reversed(xs)), min))
        return xs, costs[::-1]


def _packed_work(bucket: Bucket) -> tuple[int, int]:
    """Return what there is to do: the elements of a row, and those of all."""
    row = math.prod(bucket[1:])
    return row, bucket[0] * row


def _rounded_up(values: list[int], size: int) -> int:
    """Return the least of ascending values that is not below a size, or the size beyond them."""
    at = bisect_left(values, size)
    return values[at] if at < len(values) else size


def _limits(table: Mapping[Bucket, float]) -> Shape:
    return tuple(map(max, zip(*(bucket[1:] for bucket in table), strict=True)))


def _dynamic_steps(max_rows: int) -> tuple[int, ...]:
    """Return 1, 2, … 8, 10, … 16, 20, … 32, 40, …: every count matters less as counts grow."""
    steps: list[int] = []
    step = 1
    while step < max_rows:
        steps.append(step)
        step += max(1, 1 << max(0, (step.bit_length() - 3)))
    return (*steps, max_rows)


def _interpolate(xs: list[int], ys: list[float], x: int) -> float:
    """Return y at x: linear between points, proportional beyond the last, flat before the first."""
    at = bisect_left(xs, x)
    if at == len(xs):
        if len(xs) == 1:
            return ys[-1] * x / max(xs[-1], 1)
        slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
        return ys[-1] + max(slope, 0.0) * (x - xs[-1])
    if at == 0 or xs[at] == x:
        return ys[at]
    share = (x - xs[at - 1]) / (xs[at] - xs[at - 1])
    return ys[at - 1] + share * (ys[at] - ys[at - 1])
