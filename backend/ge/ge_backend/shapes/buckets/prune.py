"""Fewer buckets for the same traffic: graphs are a scarce resource on accelerators.

Each shape that traffic has pays for the cheapest bucket that covers it; where none has enough rows,
for running a smaller one several times. Buckets are taken out one by one, the one whose loss costs
least in expectation first, until no more than `max_graphs` are left. What is needed so that every
size has a bucket at all is never taken out.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ge_backend.errors import ConfigError
from ge_backend.shapes.buckets.grid import Bucket, BucketGrid, covers, padded_elements

__all__ = ["prune"]

# (whether rows must be split, cost of all runs, bucket): offers compare by preference.
_Offer = tuple[bool, float, Bucket]
# Each takes some 100 bytes, and the time to sort it: a few hundred MiB, and seconds.
MAX_OFFERS = 2**23


def prune(
    grid: BucketGrid,
    max_graphs: int,
    traffic: Mapping[Bucket, float] | None = None,
) -> BucketGrid:
    """Return a grid of at most `max_graphs` buckets that still takes every size.

    For each combination of sizes that no other one covers, the bucket with the most rows stays: in
    a full product that is the largest bucket.

    Args:
        grid: the buckets.
        max_graphs: how many of them may stay.
        traffic: weight by shape (rows, sizes); left out, every bucket is as likely as any other. Of
            more shapes than can be looked at the heaviest count.

    Raises:
        ConfigError: `max_graphs` is below what the coverage needs, or there are too many buckets.
    """
    most = MAX_OFFERS // len(grid.entries)
    if traffic is None and len(grid.entries) > most:
        raise ConfigError(
            f"max_graphs cannot choose from {len(grid.entries)} buckets, more than {MAX_OFFERS} "
            "pairs of them; take larger steps, or fewer sizes"
        )
    weights = dict.fromkeys(grid.entries, 1.0) if traffic is None else traffic
    if len(weights) > most:
        weights = dict(heapq.nlargest(most, weights.items(), key=lambda item: item[1]))
    needed = _needed(grid)
    if max_graphs < len(needed):
        raise ConfigError(
            f"max_graphs is {max_graphs}, expected at least {len(needed)}: that many buckets are "
            "needed so that every size still has one"
        )
    kept = set(grid.entries)
    shapes = [
        _ShapeOffers(weight, sorted(_offers(grid, shape), reverse=True))
        for shape, weight in weights.items()
    ]
    _eliminate(kept, needed, [shape for shape in shapes if shape.offers], max_graphs)
    return replace(grid, entries=tuple(sorted(kept)))


@dataclass(slots=True)
class _ShapeOffers:
    """A shape of the traffic, and its offers, the best one last."""

    weight: float
    offers: list[_Offer]

    def choose(self, kept: set[Bucket]) -> Bucket:
        """Forget what is gone from the end of the list, and return the best bucket left."""
        while self.offers[-1][2] not in kept:
            self.offers.pop()
        return self.offers[-1][2]

    def loss(self, kept: set[Bucket]) -> float:
        """Return what it costs this shape if its best bucket goes; the last one left never does."""
        while len(self.offers) > 1 and self.offers[-2][2] not in kept:
            del self.offers[-2]
        if len(self.offers) == 1:
            return 0.0
        return self.weight * max(self.offers[-2][1] - self.offers[-1][1], 0.0)


def _offers(grid: BucketGrid, shape: Bucket) -> list[_Offer]:
    """Return what the buckets that cover the shape's sizes cost it."""
    offers = []
    for entry in grid.entries:
        if covers(entry[1:], shape[1:]):
            runs = -(-shape[0] // entry[0])
            offers.append((runs > 1, runs * padded_elements(entry), entry))
    return offers


def _needed(grid: BucketGrid) -> set[Bucket]:
    """Return, for each combination of sizes that no other covers, its bucket with the most rows."""
    most_rows: dict[tuple[int, ...], Bucket] = {}
    for entry in grid.entries:  # ascending, so the last one has the most rows
        most_rows[entry[1:]] = entry
    return {
        bucket
        for sizes, bucket in most_rows.items()
        if not any(other != sizes and covers(other, sizes) for other in most_rows)
    }


def _eliminate(
    kept: set[Bucket], needed: set[Bucket], shapes: list[_ShapeOffers], max_graphs: int
) -> None:
    """Take buckets out of `kept` until few enough are left.

    A loss grows while others go, so an old figure in the heap is too low: when its turn comes it is
    put back with the present one.
    """
    of: dict[Bucket, list[_ShapeOffers]] = {bucket: [] for bucket in kept}
    for shape in shapes:
        of[shape.choose(kept)].append(shape)
    heap = [(sum(b.loss(kept) for b in of[bucket]), bucket) for bucket in kept - needed]
    heapq.heapify(heap)
    while len(kept) > max_graphs:
        estimate, bucket = heapq.heappop(heap)
        loss = sum(shape.loss(kept) for shape in of[bucket])
        if loss > estimate:
            heapq.heappush(heap, (loss, bucket))
            continue
        kept.remove(bucket)
        for shape in of.pop(bucket):
            of[shape.choose(kept)].append(shape)
