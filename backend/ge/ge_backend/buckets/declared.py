"""Buckets that a configuration declares as whole shapes of all inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ge_backend.buckets.axis import ROWS
from ge_backend.buckets.grid import Bucket, BucketGrid, listed_grid
from ge_backend.errors import ConfigError
from ge_backend.layout.layout import InputLayout, Layout
from ge_backend.tensors import Shape

__all__ = ["declared_grid"]


def declared_grid(declared: Sequence[Mapping[str, Shape]], layout: Layout) -> BucketGrid:
    """Return the grid of these shapes; free axes that are not padded have any size in it.

    Args:
        declared: the shape of each input that has something free, by name; at least one.
        layout: the graph's.

    Raises:
        ConfigError: they are not shapes of this graph, or not one number of rows with one size for
            each padded axis.
    """
    known = [item.name for item in layout.inputs]
    for name in declared[0]:
        if name not in known:
            raise ConfigError(
                f"parameter 'ge.inputShape': the model has no input {name!r}; it has "
                f"{', '.join(known)}"
            )
    return listed_grid((ROWS, *layout.axes), [_bucket(shapes, layout) for shapes in declared])


def _bucket(shapes: Mapping[str, Shape], layout: Layout) -> Bucket:
    rows, sizes = 1, dict.fromkeys(range(len(layout.axes)), 0)
    for item in layout.inputs:
        shape = shapes.get(item.name)
        if shape is None:
            _check_closed(item, layout)
            continue
        row = shape[1:] if layout.batched else shape
        rows = shape[0] if layout.batched and shape else 1
        for size, axis in zip(row, item.axes, strict=False):
            if axis in sizes:
                sizes[axis] = size
    for item in layout.inputs:
        if item.name in shapes:
            _check(item, shapes[item.name], layout, (rows, *sizes.values()))
    return (rows, *sizes.values())


def _check_closed(item: InputLayout, layout: Layout) -> None:
    """See that an input that is not declared has no size that is free."""
    if any(0 <= axis < len(layout.axes) for axis in item.axes):
        raise ConfigError(
            f"parameter 'ge.inputShape' does not list input {item.name!r}, which has a size that "
            "is free; add it"
        )


def _check(item: InputLayout, shape: Shape, layout: Layout, bucket: Bucket) -> None:
    """See that an input's shape is the one that it has in the bucket."""
    sizes = bucket[1:] + (-1,) * len(layout.matched)
    row = item.row_shape(sizes)
    whole = (*bucket[:1], *row) if layout.batched else row
    agrees = len(whole) == len(shape) and all(
        want in {-1, have} for want, have in zip(whole, shape, strict=True)
    )
    if not agrees:
        raise ConfigError(
            f"parameters 'ge.inputShape' and 'ge.dynamicDims' make input {item.name!r} "
            f"{list(shape)}, which has to be {list(whole)} beside the other inputs (-1 is any "
            "size); rows are one number in a gear, and so is each axis"
        )
