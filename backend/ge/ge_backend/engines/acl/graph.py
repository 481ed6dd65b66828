"""A graph of offline models: one file, or a grid of files that are one model.

Everything that a run needs is taken at load, for the largest shape: work memory that all files
share, slots for inputs and outputs, and a table from input shapes to the file and gear that run
them. A run copies, chooses the gear, queues the run and the copies back on one stream, and waits.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ge_backend.device.arrays import ShapesKey, shapes_key
from ge_backend.device.base import Graph
from ge_backend.device.resident.buffers import NOTHING_BOUND, Bound, BufferMemory
from ge_backend.engines.acl.buffers import AclMemory
from ge_backend.engines.acl.description import Description, Tensor
from ge_backend.engines.acl.om_model import LoadedModel, OmRun, OmSource
from ge_backend.engines.acl.signature import signature_of
from ge_backend.engines.acl.transfer import Transfer, check_outputs, checked_shapes
from ge_backend.errors import GraphFailed, ModelError
from ge_backend.model.files.om_files import read_axes
from ge_backend.tensors import PREPARED, Array, Shape

__all__ = ["OmGraph"]


@dataclass(frozen=True, slots=True)
class _Choice:
    """What runs one set of input shapes, and the shapes that come of it."""

    model: LoadedModel
    gear: int
    outputs: Mapping[str, Shape]


class OmGraph(Graph):
    """A graph that runs in a fixed list of shapes; see `Graph`.

    It locks itself: no model of it is ever in flight twice, and no two of its models at once.

    Args:
        source: what it is made from.
        models: one for each file; of one model.
        taken: what it has to give back in the end, they among it; becomes the graph's.

    Raises:
        ModelError: the files are not of one model, or not what their names say.
        OutOfMemory: there is no room for inputs and outputs.
    """

    shape_policy = PREPARED

    def __init__(
        self, source: OmSource, models: Sequence[LoadedModel], taken: contextlib.ExitStack
    ) -> None:
        self._device = source.device
        self._path = str(source.path)
        self._timeout_ms = source.timeout_ms
        self._taken = taken
        self._lock = threading.Lock()
        described = [model.description for model in models]
        self._inputs, self._outputs = _largest(described, self._path)
        self._transfer = Transfer(self._device.runtime, self._inputs, self._outputs, self._path)
        taken.callback(self._transfer.close)
        self._choices: dict[ShapesKey, _Choice] = {}
        runs: list[OmRun] = []
        for model in models:
            model.bind(self._transfer)
            runs += model.runs
            for gear, run in enumerate(model.runs):
                self._choices[shapes_key(run.inputs)] = _Choice(model, gear, run.outputs)
        labels = [model.label for model in models if model.label]
        self.signature = signature_of(
            self._inputs, self._outputs, runs, read_axes(source.path), labels
        )
        fixed = tuple(run.inputs for run in runs)
        self.shape_policy = replace(PREPARED, fixed=fixed)

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """See that the file has these shapes."""
        self._choice(inputs, NOTHING_BOUND)

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the work memory of the file that runs these shapes, whatever the gear."""
        choice = self._choices.get(shapes_key(shapes))
        return 0 if choice is None else choice.model.sizes.work

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`."""
        del exclusive  # a run has all cores as it is
        return self.run_bound(inputs, outputs, NOTHING_BOUND)

    def device_memory(self) -> BufferMemory:
        """Return the NPU's; see `BoundGraph`."""
        return AclMemory(self._device, self._timeout_ms)

    def run_bound(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], bound: Bound
    ) -> dict[str, Array]:
        """Run once; see `BoundGraph`."""
        choice = self._choice(inputs, bound)
        check_outputs(self._outputs, choice.outputs, self._path, bound)
        model = choice.model
        shapes = {n: shape for n, shape in choice.outputs.items() if n not in bound.hidden}
        with self._lock, self._device.stream(self._timeout_ms) as stream:
            model.choose(choice.gear)
            self._transfer.upload(inputs, stream)
            self._transfer.gather(bound, stream)
            model.submit(stream)
            self._transfer.download(shapes, stream)
            self._transfer.scatter(bound, stream)  # last: what is refused before changes nothing
            self._device.runtime.synchronise(stream, self._timeout_ms)
            return self._transfer.results(shapes, outputs)

    def close(self) -> None:
        """Unload every file and free what they used."""
        with self._lock:
            self._device.settle()
            self._taken.close()

    def _choice(self, inputs: Mapping[str, Array], bound: Bound) -> _Choice:
        shapes = checked_shapes(self._inputs, inputs, self._path, bound)
        choice = self._choices.get(shapes_key(shapes))
        if choice is None:
            raise GraphFailed(
                f"{self._path} was not compiled for {_shown(shapes)}; it runs "
                f"{' or '.join(map(_shown, self.shape_policy.fixed))}"
            )
        return choice


def _largest(
    descriptions: Sequence[Description], path: str
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the tensors that all files have, each with the most bytes that it has in any.

    Raises:
        ModelError: the files are not of one model.
    """
    first = descriptions[0]
    for other in descriptions[1:]:
        for ours, theirs in ((first.inputs, other.inputs), (first.outputs, other.outputs)):
            if [(t.name, t.dtype, len(t.dims)) for t in ours] != [
                (t.name, t.dtype, len(t.dims)) for t in theirs
            ]:
                raise ModelError(
                    f"the files beside {path} are not of one model: one has {_described(ours)}, "
                    f"another {_described(theirs)}"
                )
    return (
        _maximum([description.inputs for description in descriptions]),
        _maximum([description.outputs for description in descriptions]),
    )


def _maximum(tensors: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
    return tuple(max(same, key=lambda tensor: tensor.nbytes) for same in zip(*tensors, strict=True))


def _described(tensors: Sequence[Tensor]) -> str:
    return ", ".join(f"{t.name} {t.dtype.name} {list(t.dims)}" for t in tensors)


def _shown(shapes: Mapping[str, Shape]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())
