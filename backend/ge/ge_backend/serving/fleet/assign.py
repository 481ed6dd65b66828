"""Which device runs which sub-batch: whichever has the least estimated time outstanding.

Longest first, each onto the device that would be done soonest. Costs count, not requests, so
unequal shapes balance too. Source: R. L. Graham, "Bounds on multiprocessing timing anomalies",
SIAM J. Appl. Math. 17 (1969): idle devices end at most 4/3 as late as the best assignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

__all__ = ["DeviceLoad", "assign"]


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """What a device has to do before anything is assigned to it, and what it was given before.

    Attributes:
        outstanding_ns: the estimate for all runs that wait or run there, of all stubs.
        given_ns: what this instance has sent there so far; decides between equals, so that
            single requests to idle devices take turns.
    """

    outstanding_ns: float
    given_ns: float = 0.0


def assign(costs: Sequence[float], loads: Sequence[DeviceLoad]) -> tuple[int, ...]:
    """Return the position of a device for each cost, in the order of the costs.

    Pure. The order of sub-batches is the plan's and stays so: those of one device are submitted
    in it. What must go to a certain device is not asked here; it belongs into that one's load.

    Args:
        costs: estimated nanoseconds of each sub-batch.
        loads: one per device, at least one.
    """
    if len(loads) == 1:
        return (0,) * len(costs)
    ends = [(load.outstanding_ns, load.given_ns, place) for place, load in enumerate(loads)]
    heapify(ends)
    places = [0] * len(costs)
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        outstanding, given, place = ends[0]
        places[index] = place
        heapreplace(ends, (outstanding + costs[index], given + costs[index], place))
    return tuple(places)
