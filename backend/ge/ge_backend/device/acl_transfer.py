"""Tensors on their way: from the caller's arrays to the device, and from there to its places."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ge_backend.device.acl_description import Tensor
from ge_backend.device.acl_memory import Slot, Staging
from ge_backend.device.acl_runtime import AclRuntime
from ge_backend.errors import GraphFailed
from ge_backend.tensors import Array, Shape

__all__ = ["Transfer", "checked_shapes", "num_bytes"]


class Transfer:
    """Room for all inputs and outputs of one run, on both sides.

    Used by one run at a time: what is staged stays there until the run is over.

    Args:
        inputs, outputs: with the bytes of their largest shapes.
        what: whose they are, in messages.

    Raises:
        OutOfMemory: there is no room.
    """

    def __init__(
        self, runtime: AclRuntime, inputs: Sequence[Tensor], outputs: Sequence[Tensor], what: str
    ) -> None:
        self._runtime = runtime
        self._in = inputs
        self._out = outputs
        with contextlib.ExitStack() as taken:
            self.inputs = self._staging(inputs, f"the inputs of {what}", taken)
            self.outputs = self._staging(outputs, f"the outputs of {what}", taken)
            self._taken = taken.pop_all()

    def upload(self, arrays: Mapping[str, Array], stream: int) -> None:
        """Stage the inputs and queue their copies; `arrays` may be reused at once."""
        for tensor in self._in:
            array, slot = arrays[tensor.name], self.inputs[tensor.name]
            if array.size:
                np.copyto(_view(slot, tensor, array.shape), array)
                self._runtime.upload(slot.device, slot.host, array.nbytes, stream)

    def download(
        self, shapes: Mapping[str, Shape], stream: int, sources: Sequence[int] = ()
    ) -> None:
        """Queue the copies of the outputs.

        Args:
            shapes: theirs, in this run.
            stream: where.
            sources: where they are on the device, if that is not in their slots.
        """
        for at, tensor in enumerate(self._out):
            nbytes = num_bytes(tensor, shapes[tensor.name])
            if nbytes:
                slot = self.outputs[tensor.name]
                source = sources[at] if sources else slot.device
                self._runtime.download(slot.host, source, nbytes, stream)

    def results(self, shapes: Mapping[str, Shape], places: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs once they are downloaded, in their places where those fit."""
        return {
            tensor.name: _settle(
                _view(self.outputs[tensor.name], tensor, shapes[tensor.name]),
                places.get(tensor.name),
            )
            for tensor in self._out
        }

    def close(self) -> None:
        """Free it: nothing in flight uses it."""
        self._taken.close()

    def _staging(
        self, tensors: Sequence[Tensor], what: str, taken: contextlib.ExitStack
    ) -> Staging:
        staging = Staging(self._runtime, {t.name: t.nbytes for t in tensors}, what)
        taken.callback(staging.close)
        return staging


def checked_shapes(
    inputs: Sequence[Tensor], arrays: Mapping[str, Array], path: str
) -> dict[str, Shape]:
    """Return the shapes of a run's inputs, once names and types are sure to be the model's.

    Raises:
        GraphFailed: they are not.
    """
    if arrays.keys() != {tensor.name for tensor in inputs}:
        known = ", ".join(tensor.name for tensor in inputs)
        raise GraphFailed(f"{path} takes the inputs {known}; got {', '.join(arrays) or 'none'}")
    for tensor in inputs:
        array = arrays[tensor.name]
        if array.dtype != tensor.dtype.numpy or array.ndim != len(tensor.dims):
            raise GraphFailed(
                f"{path}: input {tensor.name!r} is {tensor.dtype.name} {list(tensor.dims)}; "
                f"got {array.dtype} {list(array.shape)}"
            )
    return {name: array.shape for name, array in arrays.items()}


def num_bytes(tensor: Tensor, shape: Shape) -> int:
    """Return the bytes of a tensor in this shape."""
    return math.prod(shape) * tensor.dtype.numpy.itemsize


def _view(slot: Slot, tensor: Tensor, shape: Shape) -> Array:
    """Return the host side of a slot as an array."""
    nbytes = num_bytes(tensor, shape)
    return slot.bytes[:nbytes].view(tensor.dtype.numpy).reshape(shape)


def _settle(value: Array, place: Array | None) -> Array:
    if place is None or place.shape != value.shape or place.dtype != value.dtype:
        return value.copy()
    np.copyto(place, value)
    return place
