"""Tensors on their way: from the caller's arrays to the device, and from there to its places."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ge_backend.device.arrays import check_names, into_place
from ge_backend.device.resident.buffers import NOTHING_BOUND, Bound, BoundTensor, merged
from ge_backend.engines.acl.buffers import address
from ge_backend.engines.acl.description import Tensor
from ge_backend.engines.acl.memory import Slot, Staging
from ge_backend.engines.acl.runtime import AclRuntime
from ge_backend.errors import GraphFailed
from ge_backend.tensors import Array, Shape

__all__ = ["Transfer", "check_outputs", "checked_shapes", "num_bytes"]


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

    def gather(self, bound: Bound, stream: int) -> None:
        """Queue the making of those inputs that lie in buffers."""
        for name, item in bound.inputs.items():
            device = self.inputs[name].device
            if item.fill >= 0 and item.nbytes:
                self._runtime.fill(device, item.fill, item.nbytes, stream)
            for copy in merged(item.copies):
                self._runtime.copy(device + copy.offset, address(copy), copy.nbytes, stream)

    def scatter(self, bound: Bound, stream: int) -> None:
        """Queue the copies of those outputs that stay."""
        for name, item in bound.outputs.items():
            device = self.outputs[name].device
            for copy in merged(item.copies):
                self._runtime.copy(address(copy), device + copy.offset, copy.nbytes, stream)

    def download(
        self, shapes: Mapping[str, Shape], stream: int, sources: Sequence[int] = ()
    ) -> None:
        """Queue the copies of those outputs that have shapes here, as they are in this run.

        `sources` says where they are on the device, if that is not in their slots.
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
            tensor.name: into_place(
                _view(self.outputs[tensor.name], tensor, shapes[tensor.name]),
                places.get(tensor.name),
                lasting=False,
            )
            for tensor in self._out
            if tensor.name in shapes
        }

    def resize(self, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> None:
        """Have room for these many bytes of each tensor instead; nothing in flight uses it.

        Raises:
            OutOfMemory: as `Staging.resize`; the other side is as it is to be, or was.
        """
        for staging, sizes in ((self.inputs, inputs), (self.outputs, outputs)):
            if sizes != staging.sizes:
                staging.resize(sizes)

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
    inputs: Sequence[Tensor],
    arrays: Mapping[str, Array],
    path: str,
    bound: Bound = NOTHING_BOUND,
) -> dict[str, Shape]:
    """Return the shapes of a run's inputs, once names and types are sure to be the model's.

    Some come from the host, as `arrays`, and some are on the device already.

    Raises:
        GraphFailed: they are not.
    """
    given: dict[str, Array | BoundTensor] = {**arrays, **bound.inputs}
    check_names(path, [tensor.name for tensor in inputs], given)
    for tensor in inputs:
        item = given[tensor.name]
        came = item.dtype if isinstance(item, np.ndarray) else item.dtype.numpy
        if came != tensor.dtype.numpy or len(item.shape) != len(tensor.dims):
            raise GraphFailed(
                f"{path}: input {tensor.name!r} is {tensor.dtype.name} {list(tensor.dims)}; "
                f"got {came} {list(item.shape)}"
            )
    return {name: item.shape for name, item in given.items()}


def check_outputs(
    outputs: Sequence[Tensor], shapes: Mapping[str, Shape], path: str, bound: Bound
) -> None:
    """See that the outputs that stay are the model's: their bytes are copied as they are.

    Raises:
        GraphFailed: one is missing, or has another shape or type.
    """
    bound.check(shapes)
    for tensor in outputs:
        item = bound.outputs.get(tensor.name)
        if item is not None and item.dtype.numpy != tensor.dtype.numpy:
            raise GraphFailed(
                f"{path}: output {tensor.name!r}, which stays on the device, is "
                f"{tensor.dtype.name}, and {item.dtype.name} is declared"
            )


def num_bytes(tensor: Tensor, shape: Shape) -> int:
    """Return the bytes of a tensor in this shape."""
    return math.prod(shape) * tensor.dtype.numpy.itemsize


def _view(slot: Slot, tensor: Tensor, shape: Shape) -> Array:
    """Return the host side of a slot as an array."""
    nbytes = num_bytes(tensor, shape)
    return slot.bytes[:nbytes].view(tensor.dtype.numpy).reshape(shape)
