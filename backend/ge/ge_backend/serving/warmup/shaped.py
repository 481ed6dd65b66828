"""A model's graph on a device, and the buckets that it is served in: how every opening begins."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ge_backend.errors import ConfigError, GraphFailed
from ge_backend.executor.client.session import Session
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.layout import EQUAL_AXIS_SIZE, Layout, build_layout
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.verdict import Verdict
from ge_backend.serving.warmup.warmup import bucket_inputs, run_bucket
from ge_backend.shapes.buckets.build import build_grid
from ge_backend.shapes.buckets.grid import Bucket, BucketGrid
from ge_backend.shapes.traffic.histogram import SizeHistogram
from ge_backend.tensors import DATA_TYPES, DataType, Shape

__all__ = ["MAX_BYTES", "ShapedModel", "recorded_traffic", "small", "with_equal_axis_size"]

log = logging.getLogger(__name__)
# A second of sound has as many samples as the last; images that large are not tried.
SIZES = (EQUAL_AXIS_SIZE, 64, 256, 1024, 4096, 16384)
# What is made up has no more bytes, so that no graph takes all memory for it.
MAX_BYTES = 16 << 20
# Nor has it more ids in one input: a graph makes hundreds of numbers of each, and of each pair.
MAX_IDS = 1 << 13


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedModel:
    """A model as an instance of it is after load, but for warm-up.

    Attributes:
        config: complete, as the host gives it, but for rows of which a run takes no more.
        session: with the model's first device.
        store: where costs and traffic are kept.
        verdicts: what was tested of it.
    """

    config: ModelConfig
    session: Session
    layout: Layout
    grid: BucketGrid
    store: Store
    verdicts: tuple[Verdict, ...] = ()

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        session: Session,
        store: Store,
        layout: Layout | None = None,
        verdicts: tuple[Verdict, ...] = (),
    ) -> ShapedModel:
        """Return what is served of a graph that is loaded; without a layout as its file says.

        Raises:
            ConfigError: configuration and graph do not agree, or make no usable buckets.
        """
        shape_policy = session.shape_policy
        if layout is None:
            layout = build_layout(config, session.signature, shape_policy)
        if 0 < layout.most_rows < config.max_batch_size:
            log.info("runs have up to %d rows: the model file takes no more", layout.most_rows)
            config = replace(config, max_batch_size=layout.most_rows)
        grid = _grid(config, layout, session, store)
        if config.warmup and not shape_policy.prepared and not layout.concatenated:
            layout = with_equal_axis_size(session, layout, min(grid.entries, key=math.prod))
        return cls(
            config=config,
            session=session,
            layout=layout,
            grid=grid,
            store=store,
            verdicts=verdicts,
        )

    def grid_with(self, buckets: Mapping[str, str]) -> BucketGrid:
        """Return the buckets that it has with these sizes of axes, by name, in place of its own.

        Raises:
            ConfigError: it would not load with them.
        """
        config = replace(self.config, buckets={**self.config.buckets, **buckets})
        return _grid(config, self.layout, self.session, self.store)


def _grid(config: ModelConfig, layout: Layout, session: Session, store: Store) -> BucketGrid:
    traffic = recorded_traffic(config, store)
    return build_grid(config, layout, session.shape_policy, traffic=traffic)


def recorded_traffic(config: ModelConfig, store: Store) -> dict[str, SizeHistogram]:
    """Return the recorded traffic where it decides something; a broken file is as good as none."""
    try:
        return store.traffic(config.name) if config.max_graphs else {}
    except ConfigError as error:
        log.warning("buckets are chosen without traffic: %s", error)
        return {}


def small(tensors: Iterable[tuple[DataType, Shape]]) -> bool:
    """Whether inputs of these types and shapes may be made up: by their bytes, and their ids."""
    nbytes = 0
    for dtype, shape in tensors:
        count = math.prod(shape)
        nbytes += count * dtype.numpy.itemsize
        if dtype.name in ("INT32", "INT64") and count > MAX_IDS:
            return False
    return nbytes <= MAX_BYTES


def with_equal_axis_size(session: Session, layout: Layout, bucket: Bucket) -> Layout:
    """Return the layout with the smallest of some sizes at which this bucket of it runs.

    It is that of free axes which are not padded: how large images or sounds are going to be is not
    said, and a detector does not run at sizes that a small encoder is measured at.

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
        if size > EQUAL_AXIS_SIZE and not small((DATA_TYPES[i.dtype], i.shape) for i in inputs):
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
