"""The size at which free axes that are not padded are measured: one that the graph takes.

How large images or sounds are going to be is not said, and a detector does not run at sizes that a
small encoder is measured at.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from ge_backend.errors import GraphFailed
from ge_backend.executor.client.session import Session
from ge_backend.model.layout.layout import EQUAL_AXIS_SIZE, Layout
from ge_backend.serving.warmup.warmup import bucket_inputs, run_bucket
from ge_backend.shapes.buckets.grid import Bucket
from ge_backend.tensors import DATA_TYPES

__all__ = ["with_equal_axis_size"]

log = logging.getLogger(__name__)

# A second of sound has as many samples as the last; images that large are not tried.
SIZES = (EQUAL_AXIS_SIZE, 64, 256, 1024, 4096, 16384)
MAX_BYTES = 16 << 20


def with_equal_axis_size(session: Session, layout: Layout, bucket: Bucket) -> Layout:
    """Return the layout with the smallest of some sizes at which this bucket of it runs.

    Where none does, as where two axes depend on each other, the log says so once, and costs are
    estimated until requests have run.

    Raises:
        ConfigError: an output's first dimension is not the rows.
    """
    if all(name in layout.sizes or name in layout.typical_sizes for name in layout.equal_axes):
        return layout
    said = ""
    for size in SIZES:
        tried = replace(layout, equal_axis_size=size)
        inputs = bucket_inputs(bucket, tried)
        nbytes = [math.prod(i.shape) * DATA_TYPES[i.dtype].numpy.itemsize for i in inputs]
        if size > EQUAL_AXIS_SIZE and sum(nbytes) > MAX_BYTES:
            break
        try:
            run_bucket(session, tried, bucket, 1, alone=False)
        except GraphFailed as error:
            said = said or str(error)
        else:
            return tried
    log.warning(
        "costs are estimated until requests have run: the graph does not run with its axes %s at "
        "any size that was tried, from %d on: %s",
        ", ".join(dict.fromkeys(layout.equal_axes)),
        EQUAL_AXIS_SIZE,
        said,
    )
    return replace(layout, equal_axis_size=0)
