"""Geometric spacing: the points of a curve, rounded exactly or as float64 does."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Curve"]

# A float64 estimate nearer than this to a whole number is decided with integers.
TIE = 1e-12


@dataclass(frozen=True, slots=True)
class Curve:
    """The points first * (last / first) ** (index / intervals), for index 0 to `intervals`."""

    first: int
    last: int
    intervals: int
    compat: bool

    def estimate(self, index: int) -> float:
        """Return the point in float64, by the reference's own expression."""
        exponent = (1.0 / float(self.intervals)) * index
        return float(self.first * (self.last / self.first) ** exponent)

    def ceil(self, index: int, step: int) -> int:
        """Return the point rounded up to a multiple of `step`."""
        quotient = self.estimate(index) / step
        nearest = round(quotient)
        if self.compat or abs(quotient - nearest) > TIE * quotient:
            return math.ceil(quotient) * step
        return (nearest if self.at_most(index, nearest * step, 1) else nearest + 1) * step

    def at_most(self, index: int, numerator: int, denominator: int) -> bool:
        """Return whether the point is at most the fraction; exactly, unless `compat`."""
        if self.compat:
            return self.estimate(index) <= numerator / denominator
        if self.first == self.last:
            return self.first * denominator <= numerator
        shared = math.gcd(index, self.intervals)
        up, whole = index // shared, self.intervals // shared
        power: int = self.last**up * self.first ** (whole - up) * denominator**whole
        bound: int = numerator**whole
        return power <= bound

    def points(self, step: int, *, contiguous: bool) -> set[int]:
        """Return all points rounded up; `contiguous` keeps the last one as it is."""
        rounded = {self.ceil(index, step) for index in range(self.intervals)}
        return rounded | {self.last if contiguous else self.ceil(self.intervals, step)}

    def nearest_unused(self, index: int, multiples: range, used: set[int]) -> int | None:
        """Return the free multiple nearest to a point, the smaller of two; None if all are used."""
        if not multiples:
            return None
        at = math.ceil((self.estimate(index) - multiples.start) / multiples.step)
        above = min(max(at, 0), len(multiples) - 1)
        below = above - 1
        while above < len(multiples) and multiples[above] in used:
            above += 1
        while below >= 0 and multiples[below] in used:
            below -= 1
        if above == len(multiples):
            return multiples[below] if below >= 0 else None
        if below < 0 or not self.at_most(index, multiples[below] + multiples[above], 2):
            return multiples[above]
        return multiples[below]
