"""Which buckets a model has: from its configuration, its graph's limits, and recorded traffic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ge_backend.errors import ConfigError
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.layout import Layout
from ge_backend.shapes.buckets.axis import ROWS, Axis, default_axis, listed_axis, parse_axis
from ge_backend.shapes.buckets.declared import declared_grid, fixed_grid
from ge_backend.shapes.buckets.grid import BucketGrid, file_grid, label, product_grid
from ge_backend.shapes.buckets.prune import prune
from ge_backend.shapes.traffic.histogram import SizeHistogram, independent_shapes
from ge_backend.tensors import ANY_SHAPE, Shape, ShapePolicy

__all__ = ["build_grid"]

# Where nothing is configured, an engine that runs any shape is measured up to this many elements;
# beyond, its costs are extrapolated: the largest shapes would take most of the start-up time.
DEFAULT_MEASURED_ELEMENTS = 4096


def build_grid(
    config: ModelConfig,
    layout: Layout,
    shape_policy: ShapePolicy = ANY_SHAPE,
    *,
    traffic: Mapping[str, SizeHistogram],
) -> BucketGrid:
    """Return the model's buckets.

    They are the shapes that the model file has, where it runs in no others. Else they are the
    declared ones, else they come from the bucket file, else from `buckets.<axis>`, else from the
    defaults: exponential up to `max_batch_size`, and up to the graph's own limit or `max_length`;
    where config.pbtxt fixes the size of an axis, that one.

    Args:
        config: the model's configuration.
        layout: which axes are padded, and how far the graph goes.
        shape_policy: of the graph. Where only prepared shapes run every bucket is a graph, else
            they are only points to measure; where rows are padded to them although any shape runs
            the default sizes are finer.
        traffic: recorded sizes by axis, for `max_graphs`; may be empty.

    Raises:
        ConfigError: the configuration makes no usable buckets, or others than the file has.
    """
    _check_names(config, layout)
    grid = (
        _fixed(config, layout, shape_policy.fixed)
        if shape_policy.fixed
        else _configured(config, layout, bucketed=shape_policy.bucketed)
    )
    named = config.buckets or config.bucket_file is not None or config.declared_buckets
    if config.max_elements:
        try:
            grid = grid.within(config.max_elements)
        except ConfigError as error:
            raise ConfigError(f"parameter 'max_elements': {error}") from error
    elif not (shape_policy.prepared or named):
        grid = _affordable(grid)
    if config.max_graphs and len(grid.entries) > config.max_graphs:
        seen = [traffic[name] for name in grid.names if name in traffic]
        shapes = independent_shapes(seen) if len(seen) == len(grid.names) else None
        grid = prune(grid, config.max_graphs, shapes)
    return grid


def _check_names(config: ModelConfig, layout: Layout) -> None:
    if ROWS in layout.axes:
        raise ConfigError(
            f"an input's free axis is called {ROWS!r}, as the batch is here; give it another name "
            "with the parameter 'axes.<input>'"
        )
    for name in config.buckets:
        if name not in (ROWS, *layout.axes):
            known = ", ".join(f"buckets.{axis}" for axis in (ROWS, *layout.axes))
            if name in layout.equal_axes:
                known += (
                    f"; {name!r} is not padded: that takes allow_ragged_batch at its inputs, and "
                    "outputs that are known to follow it"
                )
            raise ConfigError(f"parameter 'buckets.{name}': this model has {known}")


def _fixed(
    config: ModelConfig, layout: Layout, fixed_shapes: Sequence[Mapping[str, Shape]]
) -> BucketGrid:
    """Return the grid of the file's own shapes; what is configured may repeat it, not change it."""
    grid = fixed_grid(fixed_shapes, layout)
    for axis in grid.axes:
        text = config.buckets.get(axis.name)
        if text is not None and parse_axis(text, name=axis.name).values != axis.values:
            raise ConfigError(
                f"parameter 'buckets.{axis.name}' is {text!r}, but the model file runs only with "
                f"{', '.join(map(str, axis.values))}; remove it, or compile the file for others"
            )
    declared = config.declared_buckets
    if declared and declared_grid(declared, layout).entries != grid.entries:
        raise ConfigError(
            f"parameter 'ge.dynamicDims' lists other gears than the model file has: it runs only "
            f"in {_labels(grid)}; remove it, or compile the file for others"
        )
    if config.bucket_file is not None:
        listed = file_grid(config.bucket_file, layout.axes)
        if listed.entries != grid.entries:
            raise ConfigError(
                f"bucket file {config.bucket_file} lists {_labels(listed)}, but the model file "
                f"runs only in {_labels(grid)}; remove the parameter 'buckets', or compile the "
                "file for others"
            )
    return grid


def _labels(grid: BucketGrid) -> str:
    return ", ".join(map(label, grid.entries))


def _configured(config: ModelConfig, layout: Layout, *, bucketed: bool) -> BucketGrid:
    if config.declared_buckets:
        if config.buckets or config.bucket_file is not None:
            raise ConfigError(
                "parameters 'ge.dynamicDims' and 'buckets' both say which buckets there are; keep "
                "one of them"
            )
        return declared_grid(config.declared_buckets, layout)
    if config.bucket_file is None:
        axes = [
            _axis(config, layout, name, finer=bucketed).raised(least)
            for name, least in zip(layout.axes, layout.smallest, strict=True)
        ]
        return product_grid([_rows(config).raised(layout.least_rows), *axes])
    if config.buckets:
        raise ConfigError(
            f"parameters 'buckets' and 'buckets.{next(iter(config.buckets))}' both say which "
            "buckets there are; keep one of them"
        )
    grid = file_grid(config.bucket_file, layout.axes)
    least = {ROWS: layout.least_rows, **layout.least}
    limits = {ROWS: max(config.max_batch_size, layout.least_rows), **layout.limits}
    for axis in grid.axes:
        if axis.largest > limits.get(axis.name, axis.largest):
            raise ConfigError(
                f"bucket file {config.bucket_file}: {axis.name} is {axis.largest} in a bucket, "
                f"the model takes at most {limits[axis.name]}"
            )
        if axis.values[0] < least.get(axis.name, 1):
            raise ConfigError(
                f"bucket file {config.bucket_file}: {axis.name} is {axis.values[0]} in a bucket, "
                f"the model takes at least {least[axis.name]}"
            )
    return grid


def _rows(config: ModelConfig) -> Axis:
    """Return the row counts; the host never hands over more than `max_batch_size` rows."""
    most = max(config.max_batch_size, 1)
    text = config.buckets.get(ROWS)
    if config.max_batch_size == 0 and text is None:
        return listed_axis(ROWS, (1,))
    axis = default_axis(ROWS, most) if text is None else parse_axis(text, name=ROWS)
    return axis.clipped(most)


def _axis(config: ModelConfig, layout: Layout, name: str, *, finer: bool) -> Axis:
    limit = layout.limits.get(name)
    text = config.buckets.get(name)
    if text is None and name in layout.sizes:
        return listed_axis(name, (layout.sizes[name],))
    if text is None:
        return default_axis(name, config.max_length if limit is None else limit, finer=finer)
    axis = parse_axis(text, name=name)
    return axis if limit is None else axis.clipped(limit)


def _affordable(grid: BucketGrid) -> BucketGrid:
    """Return the grid without its most expensive points.

    Every size keeps one row at least, and every number of rows the smallest sizes: without them
    it would not be known that more rows together cost less.
    """
    rows, *sizes = (axis.values for axis in grid.axes)
    most = max(DEFAULT_MEASURED_ELEMENTS, rows[-1] * math.prod(values[0] for values in sizes))
    kept = tuple(entry for entry in grid.entries if entry[0] == rows[0] or math.prod(entry) <= most)
    return replace(grid, entries=kept)
