"""One run of a model: what it checks, which memory it uses, what it does at its start and end.

A run scribbles over all of its work memory, keeps its inputs there while it computes, and scribbles
again when it ends: two runs that share work memory at the same time spoil each other's results.
"""

import struct
from collections.abc import Mapping

import numpy as np

from acl_simulator.calls.mdl_datasets import Dataset, attach_desc, buffers_of
from acl_simulator.calls.mdl_gears import gear_bytes
from acl_simulator.calls.tensors import DataBuffer, TensorDesc
from acl_simulator.codes import Code
from acl_simulator.machine.address_space import Block, align_up
from acl_simulator.machine.hazards import Access, reading, writing
from acl_simulator.machine.loaded import LoadedModel
from acl_simulator.machine.machine import Machine
from acl_simulator.machine.memory import ALIGNMENT
from acl_simulator.machine.streams import Work
from acl_simulator.models import GEAR_INPUT, Tensor, size_of
from acl_simulator.refusals import Refusal
from acl_simulator.shapes import Dims

__all__ = ["Execution"]

SCRIBBLE = 0x5A
SLACK = 64  # so much smaller than the model's input may a buffer be


class Execution:
    """A run of one model on given datasets.

    Raises:
        Refusal: the datasets do not fit the model.
    """

    def __init__(
        self,
        machine: Machine,
        model: LoadedModel,
        inputs: Dataset,
        outputs: Dataset,
        *,
        at_once: bool,
    ) -> None:
        self._machine = machine
        self._model = model
        self._om = model.om
        self._outputs = outputs
        self._at_once = at_once
        self._carries_desc = bool(inputs.descs)
        self._name = f"run of {model}"
        self._ins = self._pair("input", self._om.inputs, buffers_of(machine, inputs))
        self._outs = self._pair("output", self._om.outputs, buffers_of(machine, outputs))
        self._dims = self._resolve(inputs)
        self._work_at, self._work_size = model.work, self._om.work_bytes
        self._temporary: Block | None = None
        self._kept: dict[str, bytes] = {}
        self._results: dict[str, Dims] = {}
        self._work: Work | None = None
        self._code = 0
        self._check_sizes()

    def work(self) -> Work:
        """Return the task for a stream."""
        self._take_temporary_work()
        self._work = Work(
            name=self._name,
            accesses=self._accesses(),
            begin=self._begin,
            finish=self._finish,
            duration_ms=self._om.duration_ms,
        )
        return self._work

    # What is checked when the call is made.

    def _pair(
        self, kind: str, tensors: list[Tensor], buffers: list[DataBuffer]
    ) -> list[tuple[Tensor, DataBuffer]]:
        if len(tensors) != len(buffers):
            code = Code.INVALID_PARAM if self._om.is_range else Code.GE_PARAM_INVALID
            raise Refusal(code, f"{len(buffers)} {kind}s for the {len(tensors)} of {self._model}")
        return list(zip(tensors, buffers, strict=True))

    def _resolve(self, inputs: Dataset) -> dict[str, Dims]:
        """Return the shapes that the run will have, by input name."""
        if not self._om.is_range:
            return self._om.filled(self._model.gear or self._om.largest)
        dims = {}
        for at, (tensor, _) in enumerate(self._ins):
            if at not in inputs.descs:
                raise Refusal(Code.INVALID_PARAM, f"input {tensor.name} has no tensor desc")
            desc: TensorDesc = self._machine.handles.get("tensor desc", inputs.descs[at])
            limits = self._om.shapes.limits(tensor.name)
            if len(desc.dims) != len(limits) or not all(
                low <= dim and (high == -1 or dim <= high)
                for dim, (low, high) in zip(desc.dims, limits, strict=True)
            ):
                raise Refusal(
                    Code.INVALID_PARAM, f"input {tensor.name}: {desc.dims} is not within {limits}"
                )
            dims[tensor.key] = desc.dims
        return dims

    def _check_sizes(self) -> None:
        for tensor, buffer in self._ins:
            self._check_place(tensor, buffer)
            needed = self._bytes(tensor, self._dims)
            if buffer.size == 0 and self._om.shapes.mode == "static":
                continue  # skipped
            slack = SLACK if self._om.shapes.mode == "static" else 0
            if buffer.size + slack < needed:
                raise Refusal(
                    Code.GE_PARAM_INVALID,
                    f"E13025: input {tensor.name} needs {needed} bytes, the buffer has {buffer.size}",
                )
        dims = self._om.graph.dims(self._dims)
        for tensor, buffer in self._outs:
            if buffer.address == 0 and self._at_once and self._om.is_range:
                continue  # the runtime will allocate it
            self._check_place(tensor, buffer)
            self._check_room(tensor, buffer, max(tensor.size, self._bytes(tensor, dims)))

    def _check_place(self, tensor: Tensor, buffer: DataBuffer) -> None:
        if buffer.address == 0:
            raise Refusal(Code.INVALID_PARAM, f"the buffer of {tensor.name} is null")
        if self._machine.memory.device_of(buffer.address) is not self._model.context.device.memory:
            self._machine.misuses.refuse(
                f"{self._name}: {tensor.name} at {buffer.address:#x} is not on its device"
            )
        if buffer.address % ALIGNMENT:
            self._machine.misuses.refuse(f"{self._name}: {tensor.name} is not 64-byte aligned")

    def _check_room(self, tensor: Tensor, buffer: DataBuffer, needed: int) -> None:
        if buffer.size < needed:
            raise Refusal(
                Code.GE_PARAM_INVALID,
                f"output {tensor.name} needs {needed} bytes, the buffer has {buffer.size}",
            )

    # Which memory it uses.

    def _take_temporary_work(self) -> None:
        """A range model takes its work memory when it runs."""
        if not self._om.is_range:
            return
        size = sum(align_up(self._bytes(tensor, self._dims), 64) for tensor, _ in self._ins)
        if size:
            self._temporary = self._model.context.device.memory.allocate(
                size, owner=f"the {self._name}", refusal=Code.GE_MEMORY_ALLOCATION
            )
            self._work_at, self._work_size = self._temporary.start, size

    def _accesses(self) -> list[Access]:
        dims = {**self._dims, **self._om.graph.dims(self._dims)}
        memory = self._machine.memory
        accesses = [self._model.whole(), *self._model.holds]
        for tensor, buffer in self._ins:
            size = self._bytes(tensor, dims) if buffer.size else 0
            if size:
                memory.view(buffer.address, size)
                accesses.append(reading(buffer.address, size, f"input {tensor.name}"))
        for tensor, buffer in self._outs:
            if buffer.address and buffer.size:
                size = self._bytes(tensor, dims) or buffer.size
                memory.view(buffer.address, size)
                room = align_up(size, 32) + self._machine.padding
                accesses.append(writing(buffer.address, room, f"output {tensor.name}"))
        self._refuse_overlaps(accesses)
        return accesses

    def _refuse_overlaps(self, accesses: list[Access]) -> None:
        for at, one in enumerate(accesses):
            for other in accesses[:at]:
                if one.conflicts(other):
                    self._machine.misuses.refuse(
                        f"{self._name}: {one.what} overlaps {other.what} "
                        f"(sizes rounded up to 32, and {self._machine.padding} bytes behind)"
                    )

    def _bytes(self, tensor: Tensor, dims: Mapping[str, Dims]) -> int:
        if tensor.name == GEAR_INPUT:
            return tensor.size
        return size_of(tensor.dtype, dims[tensor.key])

    # What happens when it runs.

    def _begin(self) -> None:
        fault = self._machine.faults.take(f"kernel.{self._om.name}")
        if fault is not None:
            self._code = fault.code
            self._work.duration_ms += fault.duration_ms
        self._check_gear()
        self._scribble()
        offset = 0
        for tensor, buffer in self._ins:
            if tensor.name == GEAR_INPUT:
                continue
            size = self._bytes(tensor, self._dims)
            kept = self._machine.memory.view(self._work_at + offset, size) if size else b""
            if buffer.size and size:
                kept[:] = self._machine.memory.view(buffer.address, size)
            self._kept[tensor.key] = bytes(kept)
            offset = align_up(offset + size, 64)

    def _finish(self) -> None:
        try:
            inputs = self._inputs()
            if self._code:
                raise Refusal(self._code, f"{self._name}: a fault that the test asked for")
            for (tensor, buffer), result in zip(self._outs, self._compute(inputs), strict=True):
                self._write(tensor, buffer, result)
            self._attach_descs()
            self._machine.executions.append((self._om.name, dict(self._dims)))
        finally:
            self._scribble()
            if self._temporary is not None:
                self._model.context.device.memory.free(self._temporary)

    def _check_gear(self) -> None:
        """What the run reads in the gear buffer has to be the gear that was set."""
        gear = self._model.gear
        if gear is None:
            return
        _, buffer = self._ins[-1]
        size = gear_bytes(gear, buffer.size)
        raw = bytes(self._machine.memory.view(buffer.address, size))
        kind = "I" if size == 4 * len(gear) else "Q"
        found = struct.unpack(f"<{len(gear)}{kind}", raw)
        if found != gear:
            self._machine.misuses.refuse(
                f"{self._name}: gear {gear} is set, its buffer has {found}"
            )

    def _scribble(self) -> None:
        if self._work_size:
            self._machine.memory.view(self._work_at, self._work_size)[:] = SCRIBBLE

    def _inputs(self) -> dict[str, np.ndarray]:
        """Return the inputs out of the work memory, spoilt or not."""
        inputs, offset = {}, 0
        for tensor, _ in self._ins:
            if tensor.name == GEAR_INPUT:
                continue
            size = self._bytes(tensor, self._dims)
            raw = bytes(self._machine.memory.view(self._work_at + offset, size)) if size else b""
            if raw != self._kept[tensor.key]:
                self._machine.misuses.note(f"{self._name}: its work memory was overwritten")
            array = np.frombuffer(raw, tensor.numpy)
            inputs[tensor.key] = array.reshape(self._dims[tensor.key])
            offset = align_up(offset + size, 64)
        return inputs

    def _weights(self) -> dict[str, np.ndarray]:
        weights = {}
        for name, offset in self._om.weight_offsets().items():
            like = self._om.weights[name]
            raw = bytes(self._machine.memory.view(self._model.weights + offset, like.nbytes))
            weights[name] = np.frombuffer(raw, like.dtype).reshape(like.shape)
        return weights

    def _compute(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        try:
            with np.errstate(all="ignore"):
                results = self._om.graph.compute(inputs, self._weights())
        except (IndexError, ValueError) as error:
            raise Refusal(Code.AICORE_EXCEPTION, f"{self._name}: {error}") from error
        return [np.asarray(results[tensor.key]) for tensor, _ in self._outs]

    def _write(self, tensor: Tensor, buffer: DataBuffer, result: np.ndarray) -> None:
        raw = np.frombuffer(result.tobytes(), np.uint8)
        if buffer.address == 0:
            block = self._model.context.device.memory.allocate(
                max(len(raw), 1), refusal=Code.GE_MEMORY_ALLOCATION
            )
            buffer.address, buffer.size = block.start, len(raw)
        self._check_room(tensor, buffer, len(raw))
        if len(raw):
            self._machine.memory.view(buffer.address, len(raw))[:] = raw
        self._results[tensor.key] = result.shape

    def _attach_descs(self) -> None:
        """Tell the outputs' shapes: always for range models, else where the inputs had theirs."""
        if not (self._om.is_range or self._carries_desc):
            return
        for at, (tensor, _) in enumerate(self._outs):
            desc = TensorDesc(tensor.dtype, self._results[tensor.key], tensor.format, borrowed=True)
            attach_desc(self._machine, self._outputs, at, desc)
