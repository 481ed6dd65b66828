"""The arrays of a run, whatever the engine: checks of what comes, and where results are put."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ge_backend.errors import GraphFailed
from ge_backend.tensors import Array, Shape, Signature, TensorSpec

__all__ = [
    "ShapesKey",
    "bytes_columns",
    "check_indices",
    "check_names",
    "into_place",
    "shapes_key",
    "shapes_of",
    "wrong_input",
]

# The shapes of all inputs, to find things by.
ShapesKey = tuple[tuple[str, Shape], ...]


def shapes_of(inputs: Mapping[str, Array]) -> dict[str, Shape]:
    """Return the shapes of arrays by name."""
    return {name: array.shape for name, array in inputs.items()}


def shapes_key(shapes: Mapping[str, Shape]) -> ShapesKey:
    """Return shapes as a key, the same in whatever order they are named."""
    return tuple(sorted((name, tuple(shape)) for name, shape in shapes.items()))


def check_names(path: str, known: Collection[str], given: Collection[str]) -> None:
    """See that a run has all inputs of a graph, and no others.

    Raises:
        GraphFailed: it has not.
    """
    if set(known) != set(given):
        raise GraphFailed(
            f"{path} takes the inputs {', '.join(known)}; got {', '.join(given) or 'none'}"
        )


def check_indices(what: str, indices: Array, least: int, most: int) -> None:
    """See that indices, one at least, are in a table: some engines read beside it.

    Raises:
        GraphFailed: one is not; told in ONNX Runtime's words, which clients' errors are made of.
    """
    low, high = int(indices.min()), int(indices.max())
    if low < least or high > most:
        index = low if low < least else high
        raise GraphFailed(f"{what} idx={index} must be within the inclusive range [{least},{most}]")


def wrong_input(spec: TensorSpec, array: Array) -> GraphFailed:
    """Return the error for an input of another type or shape."""
    return GraphFailed(f"input {spec.name!r} is {spec.describe()}; got {array.dtype} {array.shape}")


def bytes_columns(path: str, signature: Signature, inputs: Mapping[str, Array]) -> list[Array]:
    """Return the inputs of a graph, each BYTES `[batch, 1]`, as `[batch]`; views.

    Raises:
        GraphFailed: they are something else.
    """
    names = [spec.name for spec in signature.inputs]
    if set(inputs) != set(names):
        given = ", ".join(inputs) or "none"
        raise GraphFailed(f"{path} takes the input {' and '.join(names)}; got {given}")
    for spec in signature.inputs:
        if inputs[spec.name].dtype != object or inputs[spec.name].shape[1:] != (1,):
            raise wrong_input(spec, inputs[spec.name])
    return [inputs[name][:, 0] for name in names]


def into_place(result: Array, place: Array | None, *, lasting: bool = True) -> Array:
    """Return the place with a result copied to it, or the result where no place fits.

    Args:
        result: of a run.
        place: where the caller wants it; it may have been predicted wrong.
        lasting: no other will write to the result's memory; else it is copied in any case.
    """
    if place is None or place.shape != result.shape or place.dtype != result.dtype:
        return result if lasting else result.copy()
    np.copyto(place, result)
    return place
