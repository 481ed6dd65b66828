"""Buckets that are whole shapes of all inputs: as a configuration declares them, or a file has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ge_backend.errors import ConfigError
from ge_backend.model.layout.layout import InputLayout, Layout
from ge_backend.shapes.buckets.axis import ROWS
from ge_backend.shapes.buckets.grid import Bucket, BucketGrid, listed_grid
from ge_backend.tensors import Shape, agree

__all__ = ["declared_grid", "fixed_grid"]

InputShapes = Mapping[str, Shape]
# Says what is wrong with the shapes of an input, which have to have another one.
Explain = Callable[[InputShapes, InputLayout, Shape], str]


def declared_grid(declared: Sequence[InputShapes], layout: Layout) -> BucketGrid:
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
    for item in layout.inputs:
        free = any(0 <= axis < len(layout.axes) for axis in item.axes)
        if free and not all(item.name in shapes for shapes in declared):
            raise ConfigError(
                f"parameter 'ge.inputShape' does not list input {item.name!r}, which has a size "
                "that is free; add it"
            )

    def explain(shapes: InputShapes, item: InputLayout, wanted: Shape) -> str:
        return (
            f"parameters 'ge.inputShape' and 'ge.dynamicDims' make input {item.name!r} "
            f"{list(shapes[item.name])}, which has to be {list(wanted)} beside the other inputs "
            "(-1 is any size); rows are one number in a gear, and so is each axis"
        )

    return _grid(declared, layout, explain)


def fixed_grid(fixed: Sequence[InputShapes], layout: Layout) -> BucketGrid:
    """Return the grid of the only shapes that a model file runs.

    Raises:
        ConfigError: they are not one number of rows with one size for each axis.
    """

    def explain(shapes: InputShapes, item: InputLayout, _: Shape) -> str:
        shown = ", ".join(f"{n} {'x'.join(map(str, s))}" for n, s in shapes.items())
        return (
            f"the model file runs {shown}, which is not one number of rows with one size for "
            f"each of {', '.join(layout.axes) or 'no axes'}; name the dimensions of "
            f"{item.name!r} with the parameter 'axes.{item.name}'"
        )

    return _grid(fixed, layout, explain)


def _grid(buckets: Sequence[InputShapes], layout: Layout, explain: Explain) -> BucketGrid:
    entries = [_bucket(shapes, layout, explain) for shapes in buckets]
    return listed_grid((ROWS, *layout.axes), entries)


def _bucket(shapes: InputShapes, layout: Layout, explain: Explain) -> Bucket:
    skip = int(layout.batched)
    rows, sizes = 1, [0] * len(layout.axes)
    by_row = [item for item in layout.inputs if item.common is None]
    given = [(item, shapes[item.name]) for item in by_row if item.name in shapes]
    for item, shape in given:
        rows = shape[0] if skip and shape else 1
        for size, axis in zip(shape[skip:], item.axes, strict=False):
            if 0 <= axis < len(sizes):
                sizes[axis] = size
    for item, shape in given:
        row = item.row_shape((*sizes, *(-1,) * len(layout.equal_axes)))
        wanted = (rows, *row) if skip else row
        if not agree(wanted, shape):
            raise ConfigError(explain(shapes, item, wanted))
    return (rows, *sizes)
