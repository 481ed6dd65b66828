"""Tensors on their way: from the caller's arrays to the device, and from there to its places."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ge_backend.device.acl.description import Tensor
from ge_backend.device.acl.memory import Slot, Staging
from ge_backend.device.acl.resident import Resident
from ge_backend.device.acl.runtime import AclRuntime
from ge_backend.errors import GraphFailed
from ge_backend.tensors import Array, Shape

__all__ = ["Transfer", "check_targets", "checked_shapes", "num_bytes"]


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
        """Stage these inputs and queue their copies; `arrays` may be reused at once."""
        for tensor in self._in:
            array, slot = arrays.get(tensor.name), self.inputs[tensor.name]
            if array is not None and array.size:
                np.copyto(_view(slot, tensor, array.shape), array)
                self._runtime.upload(slot.device, slot.host, array.nbytes, stream)

    def gather(self, resident: Resident, stream: int) -> None:
        """Queue the copies of those inputs that are on the device already."""
        for name, byte in resident.fills.items():
            nbytes = self._bytes_in(name, resident.shapes[name])
            if nbytes:
                self._runtime.fill(self.inputs[name].device, byte, nbytes, stream)
        for name, rows in resident.sources.items():
            for offset, address, nbytes in rows.spans():
                self._runtime.copy(self.inputs[name].device + offset, address, nbytes, stream)

    def scatter(self, resident: Resident, stream: int) -> None:
        """Queue the copies of those outputs that stay on the device."""
        for name, rows in resident.targets.items():
            for offset, address, nbytes in rows.spans():
                self._runtime.copy(address, self.outputs[name].device + offset, nbytes, stream)

    def download(
        self, shapes: Mapping[str, Shape], stream: int, sources: Sequence[int] = ()
    ) -> None:
        """Queue the copies of outputs.

        Args:
            shapes: of those that are wanted, in this run.
            stream: where.
            sources: where they are on the device, if that is not in their slots.
        """
        for at, tensor in enumerate(self._out):
            nbytes = num_bytes(tensor, shapes[tensor.name]) if tensor.name in shapes else 0
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
            if tensor.name in shapes
        }

    def close(self) -> None:
        """Free it: nothing in flight uses it."""
        self._taken.close()

    def _bytes_in(self, name: str, shape: Shape) -> int:
        return next(num_bytes(tensor, shape) for tensor in self._in if tensor.name == name)

    def _staging(
        self, tensors: Sequence[Tensor], what: str, taken: contextlib.ExitStack
    ) -> Staging:
        staging = Staging(self._runtime, {t.name: t.nbytes for t in tensors}, what)
        taken.callback(staging.close)
        return staging


def checked_shapes(
    inputs: Sequence[Tensor],
    arrays: Mapping[str, Array],
    path: str,
    resident: Mapping[str, Shape] = MappingProxyType({}),
) -> dict[str, Shape]:
    """Return the shapes of a run's inputs, once names and types are sure to be the model's.

    Args:
        inputs: what the model takes.
        arrays: what comes from the host.
        path: the model's, for messages.
        resident: the shapes of what is on the device already.

    Raises:
        GraphFailed: they are not.
    """
    given = [*arrays, *resident]
    if set(given) != {tensor.name for tensor in inputs}:
        known = ", ".join(tensor.name for tensor in inputs)
        raise GraphFailed(f"{path} takes the inputs {known}; got {', '.join(given) or 'none'}")
    for tensor in inputs:
        array = arrays.get(tensor.name)
        if array is None:
            continue
        if array.dtype != tensor.dtype.numpy or array.ndim != len(tensor.dims):
            raise GraphFailed(
                f"{path}: input {tensor.name!r} is {tensor.dtype.name} {list(tensor.dims)}; "
                f"got {array.dtype} {list(array.shape)}"
            )
    return {**{name: array.shape for name, array in arrays.items()}, **resident}


def check_targets(
    outputs: Sequence[Tensor], shapes: Mapping[str, Shape], path: str, resident: Resident
) -> None:
    """See that the outputs that stay on the device are there, with rows as they are kept.

    Raises:
        GraphFailed: they are not.
    """
    for name, promised in resident.promised.items():
        if shapes.get(name) != promised:
            raise GraphFailed(
                f"{path}: output {name!r}, which stays on the device, was to be {list(promised)} "
                f"and is {list(shapes.get(name, ()))}; correct the names of its dimensions"
            )
    sizes = {t.name: num_bytes(t, shapes[t.name]) for t in outputs if t.name in resident.targets}
    for name, rows in resident.targets.items():
        nbytes = sizes.get(name, 0)
        if nbytes % rows.nbytes or nbytes < rows.nbytes * len(rows.places):
            raise GraphFailed(
                f"{path}: {len(rows.places)} rows of {rows.nbytes} bytes are kept of output "
                f"{name!r}, which has {nbytes} bytes; correct the state's dims"
            )


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
