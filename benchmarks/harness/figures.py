"""What is computed from what was measured: pure, numbers in, numbers out."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence

__all__ = ["median_ratio", "percentile", "rate"]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least so many percent of the values do not exceed."""
    if not values:
        raise ValueError("no values: nothing was completed in the window; make it longer")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank) - 1, 0)]


def rate(ends: Sequence[float], start: float, end: float) -> float:
    """Return completions per second between two of them, near `start` and `end`.

    Answers come in bursts, one per batch. Counting over a fixed time would be wrong by up to a
    burst, so the clock runs from the last answer before `start` to the last one before `end`.

    Args:
        ends: times of completion, ascending.
        start: where the window begins, in the same clock.
        end: where it ends.
    """
    first = max(bisect_right(ends, start) - 1, 0)
    last = bisect_right(ends, end) - 1
    if last <= first:
        raise ValueError(f"{len(ends)} completions are too few for a rate; make the window longer")
    return (last - first) / (ends[last] - ends[first])


def median_ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    """Return the median of ours / theirs over the rounds that both have."""
    rounds = ours.keys() & theirs.keys()
    if not rounds:
        raise ValueError("the two share no round")
    return statistics.median(ours[number] / theirs[number] for number in rounds)
