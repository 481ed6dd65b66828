"""Costs that follow what runs really take: a cost model that learns from every answer.

What warm-up measured is right only as far as the machine was quiet then, and one shape that is
repeated takes less than the same shape among others. So each answer's time corrects the table:

    cost of a bucket = what was measured x the whole machine's factor x the bucket's own factor

The machine's factor follows quickly and the buckets' slowly. A busy minute makes every run longer,
so it moves the first and hardly the second: which bucket is cheaper than which stays as it was.
Runs that were alone, and may have had the whole device, have a factor of the machine of their own.

A bucket that looks too expensive is not planned, and what does not run is not corrected. So a cost
is doubted the longer no run has shown it: plans take it for less and less, until one run is planned
so, which says how much of the doubt was right.
Pure: no clock, no thread of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ge_backend.shapes.buckets.costs import CostModel
from ge_backend.shapes.buckets.grid import Bucket

__all__ = ["CorrectedCosts", "Correction", "moved"]

# Of a run's difference (as a logarithm) the machine's factor takes this part at once, and the
# bucket's own one this part of the rest, more as long as few runs of it have been seen.
MACHINE_GAIN = 0.1
BUCKET_GAIN = 0.05
# What was measured at warm-up counts as this many runs.
MEASURED_WEIGHT = 4
# One run is believed to be at most twice or half as long as expected: it may have been stopped.
MAX_STEP = math.log(2)
# However long it goes on, a factor stays within these.
MACHINE_BOUND = math.log(8)
BUCKET_BOUND = math.log(4)
# Plans are made with new costs once one of them has moved by so much, and not at every run.
NOTICED = 1.1
MIN_RUNS = 16
# After as many runs of others a cost begins to be doubted, and after as many again by as much as is
# noticed. A bucket that is rightly not planned, at twice the cost, so has one run in 4,200.
DOUBTED_RUNS = 512
# Shapes whose nearest point is remembered; beyond that the memory starts afresh.
REMEMBERED_SHAPES = 4096


@dataclass(slots=True)
class Correction:
    """What runs have said about a table of costs.

    Attributes:
        measured: nanoseconds by bucket, as warm-up measured them.
    """

    measured: Mapping[Bucket, float]
    _machine: float = field(init=False, default=0.0)
    _alone: float = field(init=False, default=0.0)
    _alone_runs: int = field(init=False, default=0)
    _own: dict[Bucket, float] = field(init=False, default_factory=dict)
    _seen: dict[Bucket, int] = field(init=False, default_factory=dict)
    _runs: int = field(init=False, default=0)
    _last: dict[Bucket, int] = field(init=False, default_factory=dict)  # of the runs, by bucket

    def observe(self, bucket: Bucket, difference: float, *, alone: bool = False) -> bool:
        """Note a run; return whether the bucket's cost was doubted until now.

        Args:
            bucket: one of the table.
            difference: the logarithm of what the run took over what `cost` says, times `alone`
                where it was.
            alone: nothing else ran or waited when it began.
        """
        seen = self._seen.get(bucket, 0)
        self._seen[bucket] = seen + 1
        own, doubted = self._own.get(bucket, 0.0), self._doubted(bucket)
        self._runs += 1
        self._last[bucket] = self._runs
        wrongly = min(max(difference, 0.0), own - doubted)
        own, difference = doubted + wrongly, difference - wrongly
        step, part = _bounded(difference, MAX_STEP), MACHINE_GAIN
        if alone:
            self._alone_runs += 1
            part = max(MACHINE_GAIN, 1 / self._alone_runs)  # nothing was measured of it
            self._alone = _bounded(self._alone + part * step, MACHINE_BOUND)
        else:
            self._machine = _bounded(self._machine + part * step, MACHINE_BOUND)
        gain = max(BUCKET_GAIN, 1 / (seen + MEASURED_WEIGHT)) * (1 - part)
        was_doubted = doubted < self._own.get(bucket, 0.0)
        self._own[bucket] = _bounded(own + gain * step, BUCKET_BOUND)
        return was_doubted

    @property
    def alone(self) -> float:
        """How many times as long a run takes that is alone."""
        return math.exp(self._alone)

    def cost(self, bucket: Bucket) -> float:
        """Return what a run of a bucket takes, in nanoseconds; less if none has for long."""
        return self.measured[bucket] * math.exp(self._machine + self._doubted(bucket))

    def costs(self) -> dict[Bucket, float]:
        """Return what runs take now, for planning."""
        return {bucket: self.cost(bucket) for bucket in self.measured}

    def lasting(self) -> dict[Bucket, float]:
        """Return what to keep for the next start: without how busy the machine is, and doubts."""
        return {b: cost * math.exp(self._own.get(b, 0.0)) for b, cost in self.measured.items()}

    def _doubted(self, bucket: Bucket) -> float:
        """Return a bucket's own factor, as a logarithm, less what is doubted of it."""
        others = self._runs - self._last.get(bucket, 0)
        doubt = max(0, others / DOUBTED_RUNS - 1) * math.log(NOTICED)
        return max(self._own.get(bucket, 0.0) - doubt, -BUCKET_BOUND)


class CorrectedCosts:
    """A `CostModel` whose table is corrected by `observe`; one thread plans and observes.

    Args:
        table: nanoseconds by bucket, as measured.
        make: returns the cost model of a table.

    Attributes:
        model: what plans are made with now.
        table: nanoseconds by bucket that it goes by.
    """

    def __init__(
        self, table: Mapping[Bucket, float], make: Callable[[Mapping[Bucket, float]], CostModel]
    ) -> None:
        self._use(make(table))
        self._correction = Correction(dict(table))
        self._make = make
        self.table: Mapping[Bucket, float] = dict(table)
        self._points: dict[Bucket, Bucket] = {bucket: bucket for bucket in table}
        self._runs = 0

    def observe(self, bucket: Bucket, run_ns: float, *, alone: bool = False) -> None:
        """Correct the costs by a run; between two plans.

        Args:
            bucket: the shape that it ran in.
            run_ns: what it took, in the terms of the table; 0 where that is not known.
            alone: nothing else ran or waited when it began.
        """
        expected = self.table.get(bucket) or self.model.cost(bucket[0], bucket[1:])
        expected = self.expected(expected, alone=alone)
        if not (run_ns > 0 and 0 < expected < math.inf):
            return
        point = self._points.get(bucket) or self._point(bucket)
        # Plans still go by the table in use; the correction may have moved on from it.
        ahead = math.log(self._correction.cost(point) / self.table[point])
        difference = math.log(run_ns / expected) - ahead
        trial = self._correction.observe(point, difference, alone=alone)
        self._runs += 1
        now = moved(self.table[point], self._correction.cost(point))
        if self._runs >= DOUBTED_RUNS or (now and (trial or self._runs >= MIN_RUNS)):
            self.table = self._correction.costs()
            self._use(self._make(self.table))
            self._runs = 0

    def expected(self, cost_ns: float, *, alone: bool) -> float:
        """Return how long a run takes that plans cost so much."""
        return cost_ns * self._correction.alone if alone else cost_ns

    def lasting(self) -> dict[Bucket, float]:
        """Return the table to keep for the next start; may be called from any thread."""
        return self._correction.lasting()

    def _use(self, model: CostModel) -> None:
        """Answer as this model does, without a call between: the planner asks it for every row."""
        self.model = model
        self.steps, self.limits, self.label = model.steps, model.limits, model.label
        self.covers, self.by_step = model.covers, model.by_step
        self.cost, self.bucket = model.cost, model.bucket

    def _point(self, bucket: Bucket) -> Bucket:
        """Find the bucket of the table that a shape is nearest to."""
        if len(self._points) >= REMEMBERED_SHAPES:
            self._points = {one: one for one in self.table}
        known = min(self.table, key=lambda one: _distance(one, bucket))
        self._points[bucket] = known
        return known


def moved(before: float, after: float) -> bool:
    """Whether a cost has changed so much that something has to be done about it."""
    return not before / NOTICED <= after <= before * NOTICED


def _distance(one: Bucket, other: Bucket) -> float:
    """Return how far apart two shapes are; twice as large is as far as half as large."""
    return sum(abs(math.log(max(a, 1) / max(b, 1))) for a, b in zip(one, other, strict=True))


def _bounded(value: float, most: float) -> float:
    return max(-most, min(most, value))
