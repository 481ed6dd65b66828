"""Bucket sizes from traffic: the boundaries of an axis that cost least in expectation.

With sizes v1 < v2 < … and counts c1, c2, …, the best j boundaries of which the last is v_i cost

    T[j][i] = min over m < i of  T[j-1][m] + (c_{m+1} + … + c_i) * cost(v_i)

which is exact among the sizes that were seen; where costs grow with the size, no other size can be
part of an optimal set.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ge_backend.errors import ConfigError
from ge_backend.shapes.traffic.histogram import SizeHistogram

__all__ = ["Expectation", "best_boundaries", "expect"]

SizeCost = Callable[[int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What boundaries make of traffic, per value of it.

    Attributes:
        cost: mean cost, in the cost function's unit.
        real: mean size.
        padded: mean size of the boundary that it runs at.
        uncovered: share of the values that no boundary covers; they are in none of the means.
    """

    cost: float
    real: float
    padded: float
    uncovered: float

    @property
    def padding(self) -> float:
        """The share of computed elements that is padding."""
        return 1.0 - self.real / self.padded if self.padded else 0.0


def expect(
    histogram: SizeHistogram, boundaries: Sequence[int], cost: SizeCost = float
) -> Expectation:
    """Return what traffic costs if each value runs at the smallest boundary that covers it.

    Args:
        histogram: the traffic.
        boundaries: in any order.
        cost: what one row of that size costs.
    """
    ordered = sorted(boundaries)
    prices = [cost(boundary) for boundary in ordered]
    covered = uncovered = 0
    price = real = padded = 0.0
    for value, count in histogram.points():
        at = bisect_left(ordered, value)
        if at == len(ordered):
            uncovered += count
            continue
        covered += count
        price += count * prices[at]
        real += count * value
        padded += count * ordered[at]
    every = max(covered, 1)
    return Expectation(
        cost=price / every,
        real=real / every,
        padded=padded / every,
        uncovered=uncovered / max(covered + uncovered, 1),
    )


def best_boundaries(
    histogram: SizeHistogram,
    count: int,
    cost: SizeCost = float,
    *,
    maximum: int | None = None,
) -> tuple[int, ...]:
    """Return at most `count` boundaries that minimise the expected cost of the traffic, ascending.

    Fewer where more would not save anything. The last one covers everything that was seen.

    Args:
        histogram: the traffic.
        count: how many boundaries there may be.
        cost: what one row of that size costs.
        maximum: the largest size that requests may have; the last boundary covers it too, and none
            is above it but for the traffic's own largest.

    Raises:
        ConfigError: `count` is below 1, or there is no traffic.
    """
    if count < 1:
        raise ConfigError(f"{count} boundaries: expected at least 1")
    points = _candidates(histogram, maximum)
    if not points:
        raise ConfigError("no traffic was recorded; boundaries are learned from it")
    sizes = [size for size, _ in points]
    through = np.cumsum([0, *(number for _, number in points)], dtype=np.float64)
    return _cheapest(sizes, through, [cost(size) for size in sizes], count)


def _candidates(histogram: SizeHistogram, maximum: int | None) -> list[tuple[int, int]]:
    """Return (boundary, how many values it is the first to cover), ascending."""
    largest = max(histogram.largest, maximum or 0)
    merged: dict[int, int] = {}
    for value, number in histogram.points():
        size = max(value, 1)
        merged[size] = merged.get(size, 0) + number
    if merged and maximum is not None:
        merged.setdefault(largest, 0)
    return sorted(merged.items())


def _cheapest(
    sizes: list[int],
    through: np.ndarray[tuple[int], np.dtype[np.float64]],
    prices: list[float],
    count: int,
) -> tuple[int, ...]:
    """Solve the recurrence above; `through[i]` is the number of values up to the i-th size."""
    last = len(sizes)
    best = np.full(last + 1, math.inf)
    best[0] = 0.0
    chosen, least, choices = 0, math.inf, []
    for used in range(1, min(count, last) + 1):
        previous, best = best, np.full(last + 1, math.inf)
        before = np.zeros(last + 1, dtype=np.int64)
        for end in range(used, last + 1):
            totals = previous[:end] + (through[end] - through[:end]) * prices[end - 1]
            before[end] = int(totals.argmin())
            best[end] = totals[before[end]]
        choices.append(before)
        if best[last] < least:
            chosen, least = used, float(best[last])
    boundaries: list[int] = []
    end = last
    for before in reversed(choices[:chosen]):
        boundaries.append(sizes[end - 1])
        end = int(before[end])
    return tuple(reversed(boundaries))
