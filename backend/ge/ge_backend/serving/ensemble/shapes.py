"""How a tensor between two steps looks to who writes it and to who reads it. Pure.

The host does this around single models; inside a fused ensemble no other does it.
Source: triton-inference-server/core. `reshape`: src/infer_request.cc, `Normalize`, and
src/infer_response.cc, `Output::Reshape`: the sizes of one side's free dims are, in order, those of
the other's. Batches: src/ensemble_scheduler/ensemble_scheduler.cc, `ReshapeTensorDims`.
"""

from __future__ import annotations

import numpy as np

from ge_backend.errors import InvalidRequest
from ge_backend.model.config.model import TensorConfig
from ge_backend.serving.ensemble.dag import shape_text
from ge_backend.tensors import Array, Shape, agree

__all__ = ["as_read", "for_graph", "from_graph"]


def for_graph(array: Array, declared: TensorConfig, *, batched: bool) -> Array:
    """Return a step's input as its graph takes it.

    Args:
        array: `dims`; `[rows, *dims]` where the step is batched.
        declared: the input.
        batched: whether the step is.

    Raises:
        InvalidRequest: its shape does not fit the reshape.
    """
    given, wanted = declared.dims, declared.graph_dims
    if given == wanted:
        return array
    return _reshaped(f"input {declared.name!r}", array, given, wanted, batched=batched)


def from_graph(array: Array, declared: TensorConfig, *, batched: bool) -> Array:
    """Return a step's output, which its graph wrote, as others see it.

    Raises:
        InvalidRequest: its shape does not fit the reshape.
    """
    given, wanted = declared.graph_dims, declared.dims
    if given == wanted:
        return array
    return _reshaped(f"output {declared.name!r}", array, given, wanted, batched=batched)


def as_read(array: Array, dims: Shape, *, written: bool, read: bool) -> Array:
    """Return a tensor as its reader takes it, of which only one side may have a batch dimension.

    Where it does not fit either way it is returned as it is, for the reader to refuse.

    Args:
        array: the tensor.
        dims: the reader's, without the batch dimension.
        written: whether the writer has batches: the tensor begins with a batch dimension.
        read: whether the reader has batches.
    """
    if read == written:
        return array
    fits = agree(array.shape, dims)
    if read and fits:
        return array[np.newaxis]
    if written and not fits and array.shape[0] == 1:
        return array.reshape(array.shape[1:])
    return array


def _reshaped(what: str, array: Array, given: Shape, wanted: Shape, *, batched: bool) -> Array:
    skip = 1 if batched else 0
    rows, shape = array.shape[:skip], array.shape[skip:]
    if agree(shape, given):
        free = iter([size for size, dim in zip(shape, given, strict=True) if dim < 0])
        target = tuple([next(free, 0) if dim < 0 else dim for dim in wanted])
        try:
            return array.reshape(rows + target)
        except ValueError:
            pass
    raise InvalidRequest(
        f"{what} has shape {list(array.shape)}, which cannot be reshaped from "
        f"{shape_text(given, batched=batched)} to {shape_text(wanted, batched=batched)}"
    )
