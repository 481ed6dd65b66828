"""Costs of engines that run any shape, and rather one that they have run before.

Each new shape costs such an engine time, and memory for ever. So rows are padded to the cheapest
prepared bucket that covers them; only what no bucket covers runs in a shape of its own, as long as
those are few.
"""

from __future__ import annotations

import math

from ge_backend.shapes.buckets.costs import CostModel, DynamicCosts, StaticCosts
from ge_backend.shapes.buckets.grid import Bucket
from ge_backend.tensors import Shape

__all__ = ["BucketedCosts"]


class BucketedCosts(CostModel):
    """A `CostModel`: prepared buckets where one covers the rows, else shapes of their own.

    Args:
        buckets: what the prepared ones cost.
        free: what any other shape costs.
    """

    def __init__(self, buckets: StaticCosts, free: DynamicCosts) -> None:
        self.table = buckets.table
        self.steps = buckets.steps
        self.limits = buckets.limits
        self._buckets = buckets
        self._free = free

    def covers(self, sizes: Shape) -> bool:
        """Whether some bucket covers one row of these sizes."""
        return self._buckets.covers(sizes)

    def by_step(self, sizes: Shape) -> list[tuple[int, float]]:
        """See `CostModel`."""
        return self._for(sizes).by_step(sizes)

    def cost(self, rows: int, sizes: Shape) -> float:
        """Return the cost of the cheapest bucket, or of the rows' own shape where none covers."""
        cost = self._buckets.cost(rows, sizes)
        return cost if cost < math.inf else self._free.cost(rows, sizes)

    def bucket(self, rows: int, sizes: Shape) -> Bucket | None:
        """Return the cheapest bucket that covers the rows, else their own shape."""
        return self._buckets.bucket(rows, sizes) or self._free.bucket(rows, sizes)

    def label(self, bucket: Bucket) -> str:
        """See `CostModel`."""
        return self._buckets.label(bucket) if bucket in self.table else self._free.label(bucket)

    def _for(self, sizes: Shape) -> CostModel:
        return self._buckets if self._buckets.covers(sizes) else self._free
