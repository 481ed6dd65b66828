"""How long the axes of a graph may be where it does not say, such as the positions of an encoder.

Found by running the largest bucket's size and those above, once per model file, so that a longer
request is refused before it runs, and its batch not run twice for it.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from ge_backend.batching.blame import limit_in
from ge_backend.buckets.grid import Bucket, BucketGrid
from ge_backend.errors import GeError, GraphFailed
from ge_backend.executor.client.session import Session
from ge_backend.layout.layout import Layout
from ge_backend.serving.sample_run import run_once
from ge_backend.tensors import DATA_TYPES
from ge_backend.warmup.shaped import ShapedModel
from ge_backend.warmup.warmup import bucket_inputs

__all__ = ["learned_limits"]

log = logging.getLogger(__name__)

# Sizes above this are not tried: memory may grow with their square, and cost the executor.
MOST_TRIED = 2048
# Nor are further ones after this time.
BUDGET_S = 1.0


def learned_limits(model: ShapedModel, key: Sequence[str]) -> dict[str, int]:
    """Return the longest that the padded axes can be, by name, where that was found out.

    Args:
        model: its session runs any shape; the largest bucket is tried, and what is above it.
        key: what its store keeps this under.
    """
    layout, store = model.layout, model.store
    bare = not layout.axes or layout.concatenated or layout.states
    if bare or any(item.dtype.name == "BYTES" for item in layout.inputs):
        return {}
    known = store.limits(key)
    if known is not None:
        return known
    refused = functools.partial(_refused, model.session, layout)
    ends_s = time.monotonic() + BUDGET_S
    limits: dict[str, int] = {}
    for place, axis in enumerate(layout.axes, start=1):
        if axis in layout.limits or axis in layout.sizes:
            continue
        try:
            limit = _limit(place, model.grid, refused, ends_s)
        except GeError as error:
            log.info("how long axis %s can be is not known: %s", axis, error)
            return limits
        if limit:
            log.info("axis %s can be %d long", axis, limit)
            limits[axis] = limit
    store.keep_limits(key, limits)
    return limits


def _limit(place: int, grid: BucketGrid, refused_in: Callable[[Bucket], str], ends_s: float) -> int:
    """Return the longest that the axis at this place of a bucket can be; 0 where none is found.

    What the engine says of a size that fails counts if the graph runs at that limit, and neither at
    one more nor at twice as many: convolutions take some sizes and not others.
    """
    smallest = tuple(max(1, sizes.values[0]) for sizes in grid.axes)
    largest = grid.axes[place].largest

    def refused(size: int) -> str:
        return refused_in((*smallest[:place], size, *smallest[place + 1 :]))

    size, ran = largest, 0  # nobody has to have configured the largest: it may be too long itself
    while size <= MOST_TRIED and time.monotonic() < ends_s:
        text = refused(size)
        if text:
            limit = limit_in(text)
            fits = limit is not None and ran <= limit < size
            if not (fits and limit) or refused(limit):
                return 0
            return limit if refused(limit + 1) and refused(2 * limit) else 0
        size, ran = size + 1 if size == largest else 2 * size, size
    return 0


def _refused(session: Session, layout: Layout, bucket: Bucket) -> str:
    """Run a bucket; return what the engine says if it fails, else nothing.

    Raises:
        GeError: something else went wrong.
    """
    made = {item.name: item.made for item in layout.inputs}
    inputs = {
        given.name: np.full(given.shape, given.fill, DATA_TYPES[given.dtype].numpy)
        for given in bucket_inputs(bucket, layout)
    }
    for name, array in inputs.items():
        if made[name] == "positions":
            array[...] = np.arange(array.shape[-1])
    try:
        run_once(session, inputs)
    except GraphFailed as error:
        return str(error)
    return ""
