"""How long the axes of a graph may be where it does not say, such as the positions of an encoder.

Found by running sizes above the largest bucket, once per model file, so that a longer request is
refused before it runs, and its batch not run twice for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np

from ge_backend.batching.blame import limit_in
from ge_backend.buckets.grid import BucketGrid
from ge_backend.errors import GeError, GraphFailed
from ge_backend.executor.client.session import Session
from ge_backend.executor.protocol.arena import aligned
from ge_backend.executor.protocol.messages import RunOrder
from ge_backend.layout.layout import Layout
from ge_backend.tensors import DATA_TYPES
from ge_backend.warmup.store import Store
from ge_backend.warmup.warmup import bucket_inputs

__all__ = ["learned_limits"]

log = logging.getLogger(__name__)

# Sizes above this are not tried: memory may grow with their square, and cost the executor.
MOST_TRIED = 2048
# Nor are further ones after this time.
BUDGET_S = 1.0


def learned_limits(
    session: Session, layout: Layout, grid: BucketGrid, store: Store, key: Sequence[str]
) -> dict[str, int]:
    """Return the longest that the padded axes can be, by name, where that was found out.

    Args:
        session: runs any shape.
        layout: the graph's.
        grid: its buckets; what is above the largest is tried.
        store: keeps what was found.
        key: what is kept under.
    """
    bare = not layout.axes or layout.concatenated or layout.states
    if bare or any(item.dtype.name == "BYTES" for item in layout.inputs):
        return {}
    known = store.limits(key)
    if known is not None:
        return known
    trial = _Trial(session, layout)
    limits: dict[str, int] = {}
    for number, (axis, sizes) in enumerate(zip(layout.axes, grid.axes[1:], strict=True)):
        if axis in layout.limits:
            continue
        try:
            limit = trial.limit(number, sizes.largest, grid)
        except GeError as error:
            log.info("how long axis %s can be is not known: %s", axis, error)
            return limits
        if limit:
            log.info("axis %s can be %d long", axis, limit)
            limits[axis] = limit
    store.keep_limits(key, limits)
    return limits


class _Trial:
    """Runs of a graph in sizes that it may refuse."""

    def __init__(self, session: Session, layout: Layout) -> None:
        self._session = session
        self._layout = layout
        self._ends = time.monotonic() + BUDGET_S

    def limit(self, axis: int, largest: int, grid: BucketGrid) -> int:
        """Return the longest that an axis can be; 0 where none is found.

        What the engine says of a size that fails counts if the graph runs at that limit, and
        neither at one more nor at twice as many: convolutions take some sizes and not others.
        """
        smallest = tuple(max(1, sizes.values[0]) for sizes in grid.axes)

        def refused(size: int) -> str:
            return self._refused((*smallest[: axis + 1], size, *smallest[axis + 2 :]))

        size = largest + 1
        while size <= MOST_TRIED and time.monotonic() < self._ends:
            text = refused(size)
            if text:
                limit = limit_in(text)
                fits = limit is not None and largest <= limit < size
                if not (fits and limit) or refused(limit):
                    return 0
                return limit if refused(limit + 1) and refused(2 * limit) else 0
            size *= 2
        return 0

    def _refused(self, bucket: tuple[int, ...]) -> str:
        """Run a bucket; return what the engine says if it fails, else nothing.

        Raises:
            GeError: something else went wrong.
        """
        inputs = bucket_inputs(bucket, self._layout)
        sizes = [int(np.prod(one.shape)) * DATA_TYPES[one.dtype].numpy.itemsize for one in inputs]
        self._session.reserve(sum(map(aligned, sizes)))
        arena = self._session.arena
        refs = []
        for item, given, nbytes in zip(self._layout.inputs, inputs, sizes, strict=True):
            ref = arena.place(given.name, given.dtype, given.shape, nbytes)
            counted = item.made == "positions"
            arena.view(ref)[...] = np.arange(given.shape[-1]) if counted else given.fill
            refs.append(ref)
        try:
            flight = self._session.flight()
            flight.submit(0, RunOrder(inputs=tuple(refs), outputs=()))
            ended = flight.receive()
        except GeError as error:
            self._session.lose(error)
            raise
        failure = None if ended is None else ended[1].error
        if failure is not None and not isinstance(failure, GraphFailed):
            raise failure
        return "" if failure is None else str(failure)
