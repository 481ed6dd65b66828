"""The memory plan: a range of the workspace pool for every holder, decided without a device.

Ranges may overlap: of two that do, one waits for the other. So a need as large as the
pool always has a place, and the plan's whole work is to make those overlap that meet least. Two
holders that run the shares `a` and `b` of the time meet for the share `a * b` of it; the plan makes
the sum of these over all overlapping pairs small.

One holder after another takes the place that adds least to that sum, and of several such places
the one in the tightest gap. Several orders are tried, then every holder may move once more as long
as that helps. Ranges that are in use are never moved.

What is certain: needs that fit beside each other, each with its guard and with nothing in use,
never overlap, and what they leave free is one gap. A range is at most 95 bytes longer than its
need. With `k` ranges in place the free bytes lie in at most `k + 1` gaps, so fragmentation is at
most `k / (k + 1)`; it makes holders wait and can refuse none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ge_backend.device.base import Range
from ge_backend.tensors import Array

__all__ = [
    "Conflict",
    "MemoryPlan",
    "Need",
    "Shortage",
    "footprint",
    "free_gaps",
    "plan_memory",
]

# Source: CANN, "memory management" (runtime api_ref 11-01): a slice of one large block begins at a
# 64-byte boundary and takes its length, rounded up to 32, and 32 bytes more.
ALIGNMENT = 64
ROUNDING = 32
GUARD = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one holder of the pool needs.

    Attributes:
        holder: its name; no two needs have the same.
        nbytes: scratch bytes of its largest run; 0 where that is not known: it gets no range.
        weight: the share of the time that it runs; only the proportions count.
        fixed: a range that is in use and stays where it is, whatever `nbytes` says.
    """

    holder: str
    nbytes: int
    weight: float = 1.0
    fixed: Range | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two holders that wait for each other, and the weight with which they meet."""

    first: str
    second: str
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A holder that fits nowhere, even alone."""

    holder: str
    needed_bytes: int
    available_bytes: int

    @property
    def missing_bytes(self) -> int:
        """By how much the pool is too small for it."""
        return self.needed_bytes - self.available_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Who lies where, who waits for whom, and who does not fit.

    Attributes:
        size_bytes: the pool's size.
        ranges: by holder, in the order of the needs.
        conflicts: the pairs whose ranges overlap.
        shortages: the holders that need more than the whole pool.
        unknown: the holders that did not say what they need; their scratch is not in the pool.
    """

    size_bytes: int
    ranges: Mapping[str, Range]
    conflicts: tuple[Conflict, ...]
    shortages: tuple[Shortage, ...]
    unknown: tuple[str, ...]

    @property
    def contention(self) -> float:
        """The sum of the conflicts' weights; 0 where no run waits for another."""
        return sum(conflict.weight for conflict in self.conflicts)

    @property
    def used_bytes(self) -> int:
        """Bytes that lie in at least one range."""
        return self.size_bytes - sum(gap.nbytes for gap in self.gaps)

    @property
    def gaps(self) -> tuple[Range, ...]:
        """The stretches that lie in no range, in order."""
        return free_gaps(self.ranges.values(), self.size_bytes)

    @property
    def fragmentation(self) -> float:
        """The share of the free bytes that lies outside the largest gap, 0 to below 1."""
        sizes = [gap.nbytes for gap in self.gaps]
        return 1.0 - max(sizes) / sum(sizes) if sizes else 0.0

    def waits_for(self, holder: str) -> tuple[str, ...]:
        """Return whose ranges overlap this holder's."""
        pairs = [(conflict.first, conflict.second) for conflict in self.conflicts]
        return tuple(b if holder == a else a for a, b in pairs if holder in {a, b})


def footprint(nbytes: int) -> int:
    """Return the bytes that a range for `nbytes` takes with its guard, on the 64-byte grid.

    The pool's last range may lack the guard: the block's own allocation ends with one.
    """
    return _up(_up(nbytes, ROUNDING) + GUARD, ALIGNMENT)


def free_gaps(ranges: Iterable[Range], size_bytes: int) -> tuple[Range, ...]:
    """Return the stretches of a pool that none of these ranges covers, in order."""
    gaps: list[Range] = []
    covered = 0
    for taken in sorted(ranges, key=lambda r: r.offset):
        if taken.offset > covered:
            gaps.append(Range(offset=covered, nbytes=taken.offset - covered))
        covered = max(covered, taken.end)
    if covered < size_bytes:
        gaps.append(Range(offset=covered, nbytes=size_bytes - covered))
    return tuple(gaps)


def plan_memory(needs: Sequence[Need], size_bytes: int) -> MemoryPlan:
    """Return the plan for these needs in a pool of that size.

    Args:
        needs: of different holders; those with a fixed range keep it.
        size_bytes: of the pool; 0 is as large as it takes to keep them all apart.
    """
    size_bytes = size_bytes or _apart_bytes(needs)
    fixed = [_Place(need, need.fixed) for need in needs if need.fixed is not None]
    open_ = [need for need in needs if need.fixed is None and 0 < need.nbytes <= size_bytes]
    drafts = []
    for key in _ORDERS:
        order = sorted(open_, key=key, reverse=True)
        drafts.append(_improved(_draft(fixed, order, size_bytes), size_bytes))
        if not _contention(drafts[-1]):
            break  # none waits: no other order gives less
    placed = {place.need.holder: place for place in min(drafts, key=_contention)}
    return MemoryPlan(
        size_bytes=size_bytes,
        ranges={n.holder: placed[n.holder].range for n in needs if n.holder in placed},
        conflicts=tuple(
            Conflict(first=a.need.holder, second=b.need.holder, weight=_meeting(a.need, b.need))
            for a, b in combinations([placed[n.holder] for n in needs if n.holder in placed], 2)
            if a.range.overlaps(b.range)
        ),
        shortages=tuple(
            Shortage(holder=n.holder, needed_bytes=n.nbytes, available_bytes=size_bytes)
            for n in needs
            if n.fixed is None and n.nbytes > size_bytes
        ),
        unknown=tuple(n.holder for n in needs if n.fixed is None and not n.nbytes),
    )


@dataclass(frozen=True, slots=True)
class _Place:
    need: Need
    range: Range


_Draft = list[_Place]
# Orders to try: the largest first, the busiest first, and both at once.
_ORDERS: tuple[Callable[[Need], float], ...] = (
    lambda need: need.nbytes,
    lambda need: need.weight,
    lambda need: need.weight * need.nbytes,
)


def _draft(fixed: Sequence[_Place], order: Iterable[Need], size_bytes: int) -> _Draft:
    """Give every need the best place that those before it have left."""
    draft = list(fixed)
    for need in order:
        draft.append(_Place(need, _best_range(need, draft, size_bytes)))
    return draft


def _improved(draft: _Draft, size_bytes: int) -> _Draft:
    """Move single holders as long as that makes the contention smaller."""
    moving = True
    while moving:
        moving = False
        for index, place in enumerate(draft):
            others = draft[:index] + draft[index + 1 :]
            if place.need.fixed is not None or not (met := _met(place.range, others)):
                continue
            moved = _best_range(place.need, others, size_bytes)
            if _met(moved, others) < met:
                draft = [*draft[:index], _Place(place.need, moved), *draft[index + 1 :]]
                moving = True
    return draft


def _best_range(need: Need, others: Sequence[_Place], size_bytes: int) -> Range:
    """Return the range that meets the others least; of several the one in the tightest gap.

    What a range meets changes only where it passes an end of another. So it is enough to look at
    those places, where it begins as another ends or ends as another begins, and at the pool's two
    ends.
    """
    nbytes, last = footprint(need.nbytes), size_bytes - need.nbytes
    starts = {0, _down(last, ALIGNMENT)}
    for other in others:
        starts |= {_up(other.range.end, ALIGNMENT), _down(other.range.offset - nbytes, ALIGNMENT)}
    begins = np.array(sorted(start for start in starts if 0 <= start <= last))
    ends = np.minimum(begins + nbytes, size_bytes)
    gaps = free_gaps([other.range for other in others], size_bytes)
    weights = np.array([other.need.weight for other in others])
    met = np.where(_overlapping(begins, ends, [o.range for o in others]), weights, 0.0).sum(axis=1)
    sizes = np.array([gap.nbytes for gap in gaps], np.int64)
    around = np.where(_overlapping(begins, ends, gaps), sizes, 0).max(axis=1, initial=0)
    best = np.lexsort((around, need.weight * met))[0]
    return Range(offset=int(begins[best]), nbytes=int(ends[best] - begins[best]))


def _overlapping(begins: Array, ends: Array, ranges: Sequence[Range]) -> Array:
    """Return BOOL `[S, R]`: which ranges each stretch overlaps; its ends are INT64 `[S]`."""
    offsets = np.array([one.offset for one in ranges], np.int64)
    stops = np.array([one.end for one in ranges], np.int64)
    return (begins[:, None] < stops) & (offsets < ends[:, None])


def _met(chosen: Range, others: Sequence[_Place]) -> float:
    """Return the weights that a range meets; of two sums the larger is the larger, to the bit."""
    return math.fsum(other.need.weight for other in others if other.range.overlaps(chosen))


def _contention(draft: _Draft) -> float:
    pairs = combinations(draft, 2)
    return sum(_meeting(a.need, b.need) for a, b in pairs if a.range.overlaps(b.range))


def _meeting(first: Need, second: Need) -> float:
    return first.weight * second.weight


def _apart_bytes(needs: Sequence[Need]) -> int:
    """Return a size at which all needs lie beside each other."""
    ends = [need.fixed.end for need in needs if need.fixed is not None]
    open_ = sum(footprint(need.nbytes) for need in needs if need.fixed is None and need.nbytes)
    return _up(max(ends, default=0), ALIGNMENT) + open_


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _down(value: int, unit: int) -> int:
    return value // unit * unit
