"""One `.om` file on the device: its memory, its gears, and how a run of it is queued."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ge_backend.device.base import Workspace
from ge_backend.engines.acl.aipp import aipp_calls
from ge_backend.engines.acl.description import Description, Tensor, read_description
from ge_backend.engines.acl.device import AclDevice
from ge_backend.engines.acl.memory import Block, SharedWeights, explained
from ge_backend.engines.acl.transfer import Transfer, num_bytes
from ge_backend.errors import GraphFailed
from ge_backend.model.files import aipp_file
from ge_backend.model.files.model_file import stamp_of
from ge_backend.model.files.om_files import OmFile
from ge_backend.tensors import Shape

__all__ = ["LoadedModel", "OmRun", "OmSource", "Sizes", "WorkMemory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OmSource:
    """What a graph of offline models is made from, and where.

    Attributes:
        path: the file, or any file of a grid.
        pool: the block of the workspace pool; None where there is no pool.
        weights: of all models on the device.
        timeout_ms: how long a run may take before the device counts as failed.
        order: in which gears list the inputs; empty where nothing says it.
        priority: of its runs on the device; 0 goes first.
        aipp: what is done to its images, where it is to be told that.
    """

    device: AclDevice
    path: Path
    workspace: Workspace
    pool: Block | None
    weights: SharedWeights
    timeout_ms: int
    order: tuple[str, ...] = ()
    priority: int = 0
    aipp: aipp_file.Block | None = None


@dataclass(frozen=True, slots=True)
class WorkMemory:
    """Work memory that models take turns in; at address 0 there is none of ours.

    Models that share it must never be in flight at the same time: they would spoil each other's
    results without any error.
    """

    address: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes that a file needs on the device; work is 0 where it cannot be planned.

    Attributes:
        key: of the weights: files with one key are given one block.
        refusal: why ACL does not say so; it is to take all memory itself then.
    """

    work: int
    weights: int
    key: str = ""
    refusal: GraphFailed | None = None


class OmRun(NamedTuple):
    """One gear: the shapes that go in, and what comes out."""

    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]


class LoadedModel:
    """A file that is ready to run, until `close`.

    The calling thread has entered the device, here and in every method.

    Its weights are shared with other loads of the same file, and of files of the same key.

    Args:
        scratch: at least as much work memory as it needs.

    Attributes:
        label: the sizes in the file's name.
        sizes: likewise.
        description: its tensors, with the bytes that they have in any gear, and its gears.
        runs: the input and output shapes of every gear; none if dimensions vary freely.
        inputs, outputs: the datasets of its runs, once it is bound.

    Raises:
        GraphFailed: ACL refuses the file.
        ModelError, Unsupported: it has tensors that the backend cannot give or take.
        OutOfMemory: its weights do not fit.
    """

    def __init__(self, file: OmFile, sizes: Sizes, scratch: WorkMemory, source: OmSource) -> None:
        device, path = source.device, file.path
        self.label, self.sizes = file.label, sizes
        self._models = device.models
        with contextlib.ExitStack() as taken:
            at, nbytes = 0, sizes.weights
            if nbytes:
                key = sizes.key or f"{path.resolve()} {stamp_of((path.resolve(),))}"
                at = taken.enter_context(source.weights.borrowed(key, nbytes)).address
            with explained(device.runtime, str(path), sizes.work + nbytes):
                self._model = (
                    self._models.load(
                        str(path),
                        work=scratch.address,
                        work_bytes=scratch.nbytes,
                        weights=at,
                        weight_bytes=nbytes,
                        priority=source.priority,
                    )
                    if sizes.refusal is None
                    else self._models.load_alone(str(path), priority=source.priority)
                )
            taken.callback(self._models.unload, self._model)
            self._described = self._models.describe(self._model)
            taken.callback(self._models.forget, self._described)
            described = read_description(
                self._models, self._described, str(path), source.order, source.aipp
            )
            self._images = source.aipp
            self._beside: dict[int, Block] = {}  # inputs that carry no data, by index
            for index, size, what in (
                (described.gear_at, described.gear_bytes, f"a gear of {path}"),
                (described.aipp_at, described.aipp_bytes, f"image parameters, {path}"),
            ):
                if size:
                    self._beside[index] = Block(device.runtime, size, what)
                    taken.callback(self._beside[index].close)
            self.runs = () if described.freely else self._tried(described)
            self.description = _with_room(described, self.runs)
            self._taken = taken.pop_all()

    @property
    def manages_work_memory(self) -> bool:
        """See `AclModels.manages_work_memory`."""
        return self._models.manages_work_memory(self._described)

    def bind(self, transfer: Transfer) -> None:
        """Let runs read and write these slots, which are at least as large as its tensors."""
        described = self.description
        inputs = [(transfer.inputs[t.name].device, t.nbytes) for t in described.inputs]
        for at, block in sorted(self._beside.items(), key=lambda item: item[0]):
            inputs.insert(at, (block.address, block.nbytes))
        outputs = [(transfer.outputs[t.name].device, t.nbytes) for t in described.outputs]
        self.inputs, self.outputs = self._dataset(inputs), self._dataset(outputs)
        if self._images is not None:
            rank = int(self._images.get("related_input_rank", "0"))
            rows = max(run.inputs[described.inputs[rank].name][0] for run in self.runs)
            calls = tuple(aipp_calls(self._images, rows))
            self._models.set_aipp(self._model, self.inputs, described.aipp_at, calls, rows)

    def choose(self, gear: int) -> None:
        """Let the next run be in a gear, where there are several; no run is in flight."""
        described = self.description
        if described.gears.select is not None:
            value = described.gears.values[gear]
            described.gears.select(self._model, self.inputs, described.gear_at, value)

    def submit(self, stream: int) -> None:
        """Queue a run; no other is in flight."""
        self._models.submit(self._model, self.inputs, self.outputs, stream)

    def execute(self, limit: int) -> None:
        """Run at once; see `AclModels.execute`."""
        self._models.execute(self._model, self.inputs, self.outputs, limit)

    def close(self) -> None:
        """Unload it: no run is in flight."""
        self._taken.close()

    def _tried(self, described: Description) -> tuple[OmRun, ...]:
        """Choose every gear once, to see the shapes that come of it.

        It takes a dataset, of which only the buffer that chooses is looked at. Where there is one
        shape the description has it, and no other call does if RuntimeV2 runs the model.
        """
        gears = described.gears
        if gears.select is None:
            outputs = {tensor.name: tensor.dims for tensor in described.outputs}
            return tuple(OmRun(shapes, outputs) for shapes in gears.shapes)
        gear = self._beside[described.gear_at]
        dataset = self._models.dataset([(gear.address, gear.nbytes)] * (described.gear_at + 1))
        try:
            runs = []
            for shapes, value in zip(gears.shapes, gears.values, strict=True):
                gears.select(self._model, dataset, described.gear_at, value)
                outputs = {
                    tensor.name: self._models.current_output_dims(self._described, index)
                    for index, tensor in enumerate(described.outputs)
                }
                runs.append(OmRun(shapes, outputs))
            return tuple(runs)
        finally:
            self._models.close_dataset(dataset)

    def _dataset(self, buffers: list[tuple[int, int]]) -> int:
        dataset = self._models.dataset(buffers)
        self._taken.callback(self._models.close_dataset, dataset)
        return dataset


def _with_room(described: Description, runs: Sequence[OmRun]) -> Description:
    """Return the description with room for every gear in each tensor.

    ACL says the bytes of the gear that is the largest as a whole: a single tensor may be larger in
    another one.
    """

    def roomy(tensor: Tensor, shapes: Sequence[Mapping[str, Shape]]) -> Tensor:
        sizes = [num_bytes(tensor, shape[tensor.name]) for shape in shapes]
        return replace(tensor, nbytes=max([tensor.nbytes, *sizes]))

    given, results = [run.inputs for run in runs], [run.outputs for run in runs]
    return replace(
        described,
        inputs=tuple(roomy(tensor, given) for tensor in described.inputs),
        outputs=tuple(roomy(tensor, results) for tensor in described.outputs),
    )
