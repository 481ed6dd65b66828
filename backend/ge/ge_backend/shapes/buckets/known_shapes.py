"""How many different shapes an engine that runs any may see: each costs it memory for ever."""

from __future__ import annotations

import math

from ge_backend.shapes.buckets.grid import Bucket, covers
from ge_backend.tensors import Shape

__all__ = ["MOST_SHAPES", "KnownShapes"]

# Far more than a grid has, so that rounding up costs next to nothing, and few enough for memory.
MOST_SHAPES = 1024


class KnownShapes:
    """The shapes that an engine has been given; never more than a number that a larger one covers.

    Args:
        most: how many.
        least: the fewest rows and the smallest sizes that it takes; none for any.
    """

    def __init__(self, most: int = MOST_SHAPES, least: Shape = ()) -> None:
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
