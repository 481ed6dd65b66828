"""A graph of an offline model whose dimensions vary freely: the shapes are said with each run.

Its work memory is the system's own, which does not say how much it is, so it takes no part in the
workspace pool. Slots grow with the largest shapes seen, which warm-up makes the largest buckets. An
output whose shape does not follow from the inputs' by their names is given memory by ACL during the
run; such a run holds up every other thread of the process. Gears have neither cost.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence

from ge_backend.device.base import Graph
from ge_backend.engines.acl.codes import acl_number
from ge_backend.engines.acl.description import Tensor
from ge_backend.engines.acl.om_model import LoadedModel, OmSource
from ge_backend.engines.acl.signature import free_signature, ranked
from ge_backend.engines.acl.transfer import Transfer, checked_shapes, num_bytes
from ge_backend.errors import GraphFailed
from ge_backend.model.files.om_files import axes_file, read_axes
from ge_backend.tensors import Array, Shape

__all__ = ["RangeGraph"]

Shapes = Mapping[str, Shape]


class RangeGraph(Graph):
    """A graph that runs in any shape within its ranges; see `Graph`. It locks itself.

    Args:
        source: what it is made from.
        model: loaded.
        taken: what it has to give back in the end, the model among it; becomes the graph's.

    Raises:
        ModelError: names for its dimensions do not fit, or are needed to know how many there are.
        OutOfMemory: there is no room for inputs and outputs.
    """

    def __init__(self, source: OmSource, model: LoadedModel, taken: contextlib.ExitStack) -> None:
        self._device = source.device
        self._path = str(source.path)
        self._timeout_ms = source.timeout_ms
        self._models, self._model = source.device.models, model
        self._taken = taken
        self._lock = threading.Lock()
        self._lent: list[int] = []  # memory that ACL has found for outputs, and is ours to free
        described = model.description
        names, beside = read_axes(source.path), axes_file(source.path).name
        self._inputs = ranked(described.inputs, names, self._path, beside)
        self._outputs = ranked(described.outputs, names, self._path, beside)
        self.signature = free_signature(self._inputs, self._outputs, names, described.limits)
        self._transfer = Transfer(self._device.runtime, self._inputs, self._outputs, self._path)
        taken.callback(self._free)
        model.bind(self._transfer)
        self._limit = self._models.limit(source.timeout_ms)
        taken.callback(self._models.forget_limit, self._limit)

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Make room for these shapes."""
        shapes = checked_shapes(self._inputs, inputs, self._path)
        with self._lock, self._device.entered():
            self._make_room(shapes, self._predicted(shapes))

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`."""
        del exclusive  # a run has all cores as it is
        shapes = checked_shapes(self._inputs, inputs, self._path)
        predicted = self._predicted(shapes)
        with self._lock, self._device.stream(self._timeout_ms) as stream:
            self._make_room(shapes, predicted)
            self._state(shapes)
            self._transfer.upload(inputs, stream)
            if len(predicted) == len(self._outputs):
                results = self._run_queued(predicted, stream)
            else:
                results = self._run_at_once(stream)
            return self._transfer.results(results, outputs)

    def close(self) -> None:
        """Unload the file and free what it used."""
        with self._lock:
            self._device.settle()
            self._taken.close()

    def _run_queued(self, predicted: Shapes, stream: int) -> Shapes:
        """Run with outputs in our slots; return their shapes once they are downloaded."""
        for at, tensor in enumerate(self._outputs):
            slot = self._transfer.outputs[tensor.name]
            self._models.place(self._model.outputs, at, slot.device, slot.capacity)
        self._model.submit(stream)
        self._transfer.download(predicted, stream)
        self._device.runtime.synchronise(stream, self._timeout_ms)
        found = self._found()
        if found != predicted:
            raise GraphFailed(
                f"{self._path}: outputs came as {found}; the names of its dimensions say "
                f"{predicted}: correct them, or leave out those that do not follow from inputs"
            )
        return found

    def _run_at_once(self, stream: int) -> Shapes:
        """Run with outputs for which ACL finds memory; return their shapes once downloaded."""
        places = range(len(self._outputs))
        for at in places:
            self._models.place(self._model.outputs, at, 0, 0)
        self._device.runtime.synchronise(stream, self._timeout_ms)
        try:
            self._model.execute(self._limit)
            found = self._found()
            self._make_room({}, found)
            sources = [self._models.placed(self._model.outputs, at) for at in places]
            self._transfer.download(found, stream, sources)
        finally:
            self._lent = [self._models.placed(self._model.outputs, at) for at in places]
            self._device.runtime.synchronise(stream, self._timeout_ms)
            self._give_back()
        return found

    def _predicted(self, shapes: Shapes) -> dict[str, Shape]:
        """Return the shapes of those outputs whose dimensions all have a name or a size."""
        sizes: dict[str, int] = {}
        for spec in self.signature.inputs:
            for axis, size in zip(spec.axes, shapes[spec.name], strict=True):
                if axis and sizes.setdefault(axis, size) != size:
                    raise GraphFailed(
                        f"{self._path}: input {spec.name!r} is {list(shapes[spec.name])}; "
                        f"{axis} is {sizes[axis]} in another input"
                    )
        known = {spec.name: spec.shape(sizes) for spec in self.signature.outputs}
        return {name: shape for name, shape in known.items() if shape is not None}

    def _state(self, shapes: Shapes) -> None:
        """Say where the inputs are and which shapes they have."""
        for at, tensor in enumerate(self._inputs):
            slot = self._transfer.inputs[tensor.name]
            self._models.place(self._model.inputs, at, slot.device, slot.capacity)
            number, shape = acl_number(tensor.dtype), shapes[tensor.name]
            self._models.state_shape(self._model.inputs, at, number, shape)

    def _found(self) -> dict[str, Shape]:
        """Return the outputs' shapes in the run that has just ended."""
        return {
            tensor.name: self._models.stated_shape(self._model.outputs, at)
            for at, tensor in enumerate(self._outputs)
        }

    def _make_room(self, input_shapes: Shapes, results: Shapes) -> None:
        """Replace the slots where one is too small for these shapes; nothing is in flight."""
        inputs = _grown(self._inputs, self._transfer.inputs.sizes, input_shapes)
        outputs = _grown(self._outputs, self._transfer.outputs.sizes, results)
        self._transfer.resize(inputs, outputs)

    def _give_back(self) -> None:
        """Free the memory that ACL has found for outputs."""
        while self._lent:
            address = self._lent.pop()
            if address:
                self._device.runtime.free(address)

    def _free(self) -> None:
        self._give_back()
        self._transfer.close()


def _grown(tensors: Sequence[Tensor], sizes: Mapping[str, int], shapes: Shapes) -> dict[str, int]:
    """Return as many bytes for each tensor as it has, or needs in these shapes."""
    return {
        t.name: max(
            sizes.get(t.name, t.nbytes), num_bytes(t, shapes[t.name]) if t.name in shapes else 0
        )
        for t in tensors
    }
