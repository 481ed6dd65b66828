"""One run of a model, as it is asked for: what fits, which memory it uses, where results go."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from acl_simulator.calls.mdl_datasets import Dataset, attach_desc, buffers_of
from acl_simulator.calls.tensors import DataBuffer, TensorDesc
from acl_simulator.codes import Code
from acl_simulator.machine.address_space import Block, align_up
from acl_simulator.machine.hazards import Access, reading, writing
from acl_simulator.machine.kernel import Kernel, Shaped
from acl_simulator.machine.loaded import LoadedModel
from acl_simulator.machine.machine import Machine
from acl_simulator.machine.memory import ALIGNMENT
from acl_simulator.machine.streams import Work
from acl_simulator.om_file import AIPP_INPUT, GEAR_INPUT, Tensor, size_of
from acl_simulator.refusals import Refusal
from acl_simulator.shapes import Dims

__all__ = ["Execution"]

SLACK = 64  # so much smaller than a static model's input may a buffer be


class Execution:
    """A run of one model on given datasets.

    Args:
        machine: what it runs on.
        model: what runs.
        inputs, outputs: the datasets.
        at_once: the caller waits for it, so it may allocate outputs.

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
        self._gear = inputs.gear
        self._graph = model.om.graph
        if model.om.aipp_max:
            if inputs.aipp is None:
                machine.misuses.refuse(f"run of {model} without parameters for its images")
            self._graph = replace(self._graph, mean=inputs.aipp[0], scale=inputs.aipp[1])
        self._at_once = at_once
        self._carries_desc = bool(inputs.descs)
        self._name = f"run of {model}"
        self._ins = self._pair("input", self._om.inputs, buffers_of(machine, inputs))
        self._outs = self._pair("output", self._om.outputs, buffers_of(machine, outputs))
        self._targets = [(buffer.address, buffer.size) for _, buffer in self._outs]
        self._dims = self._resolve(inputs)
        self._check_inputs()
        self._check_outputs()

    @property
    def runs_by_v2(self) -> bool:
        """Whether RuntimeV2 runs the model."""
        return self._om.is_v2

    def work(self) -> Work:
        """Return the task for a stream."""
        temporary = self._temporary_work()
        accesses = self._accesses()
        place = (
            (temporary.start, temporary.size)
            if temporary
            else (self._model.work, self._om.work_bytes)
        )
        inputs = [(tensor, buffer.address, buffer.size) for tensor, buffer in self._ins]
        runs = Shaped(self._dims, self._graph, self._gear)
        kernel = Kernel(self._machine, self._model, runs, inputs, self._write_all, place)

        def finish() -> None:
            try:
                kernel.finish()
            finally:
                if temporary is not None:
                    self._model.context.device.memory.free(temporary)

        work = Work(
            name=self._name,
            accesses=accesses,
            begin=lambda: kernel.begin(work),
            finish=finish,
            duration_ms=self._om.duration_ms,
        )
        return work

    def _pair(
        self, kind: str, tensors: list[Tensor], buffers: list[DataBuffer]
    ) -> list[tuple[Tensor, DataBuffer]]:
        if len(tensors) != len(buffers):
            code = Code.INVALID_PARAM if self._om.is_v2 else Code.GE_PARAM_INVALID
            raise Refusal(code, f"{len(buffers)} {kind}s for the {len(tensors)} of {self._model}")
        return list(zip(tensors, buffers, strict=True))

    def _resolve(self, inputs: Dataset) -> dict[str, Dims]:
        """Return the shapes that the run will have, by input."""
        if not self._om.is_range:
            return self._om.shapes.fill(self._gear or self._om.largest)
        dims = {}
        for at, tensor in enumerate(self._om.inputs):
            if at not in inputs.descs:
                raise Refusal(Code.INVALID_PARAM, f"input {tensor.name} has no tensor desc")
            desc: TensorDesc = self._machine.handles.get("tensor desc", inputs.descs[at])
            limits = self._om.shapes.limits(tensor.key)
            if len(desc.dims) != len(limits) or not all(
                low <= dim and (high == -1 or dim <= high)
                for dim, (low, high) in zip(desc.dims, limits, strict=True)
            ):
                raise Refusal(
                    Code.INVALID_PARAM, f"input {tensor.name}: {desc.dims} is not within {limits}"
                )
            dims[tensor.key] = desc.dims
        return dims

    def _check_inputs(self) -> None:
        static = self._om.shapes.mode == "static"
        for tensor, buffer in self._ins:
            self._check_place(tensor, buffer)
            if static and buffer.size == 0:
                continue  # skipped
            needed = self._bytes(tensor, self._dims)
            if buffer.size + (SLACK if static else 0) < needed:
                raise Refusal(
                    Code.GE_PARAM_INVALID,
                    f"E13025: input {tensor.name} needs {needed} bytes, the buffer has {buffer.size}",
                )

    def _check_outputs(self) -> None:
        dims = self._om.graph.dims(self._dims)
        for tensor, buffer in self._outs:
            if buffer.address == 0 and self._at_once and self._om.is_v2:
                continue  # the runtime will allocate it
            self._check_place(tensor, buffer)
            self._check_room(tensor, buffer.size, max(tensor.size, self._bytes(tensor, dims)))

    def _check_place(self, tensor: Tensor, buffer: DataBuffer) -> None:
        if buffer.address == 0:
            raise Refusal(Code.INVALID_PARAM, f"the buffer of {tensor.name} is null")
        if self._machine.memory.device_of(buffer.address) is not self._model.context.device.memory:
            self._machine.misuses.refuse(
                f"{self._name}: {tensor.name} at {buffer.address:#x} is not on its device"
            )
        if buffer.address % ALIGNMENT:
            self._machine.misuses.refuse(f"{self._name}: {tensor.name} is not 64-byte aligned")

    def _check_room(self, tensor: Tensor, room: int, needed: int) -> None:
        if room < needed:
            raise Refusal(
                Code.GE_PARAM_INVALID,
                f"output {tensor.name} needs {needed} bytes, the buffer has {room}",
            )

    def _temporary_work(self) -> Block | None:
        """RuntimeV2 takes its work memory when it runs, and drops the code of the call for it.

        Source: hicann/ge runtime/v2/kernel/memory/device/device_allocator.cc, ACL_GET_ERRCODE_GE.
        """
        if not self._om.is_v2:
            return None
        size = sum(align_up(self._bytes(t, self._dims), ALIGNMENT) for t, _ in self._ins)
        if size == 0:
            return None
        try:
            return self._model.context.device.memory.allocate(size, owner=f"the {self._name}")
        except Refusal as refusal:
            self._machine.note_failure(refusal.code)
            raise Refusal(
                Code.GE_FAILURE,
                "EL0004: Failed to allocate memory requested by GE module. E19999: Inner Error! "
                f"TraceBack (most recent call last): Call aclrtMalloc fail, {refusal}",
            ) from None

    def _accesses(self) -> list[Access]:
        dims = {**self._dims, **self._om.graph.dims(self._dims)}
        machine = self._machine
        accesses = [self._model.whole(), *self._model.holds]
        for tensor, buffer in self._ins:
            size = self._bytes(tensor, dims) if buffer.size else 0
            if size:
                machine.memory.view(buffer.address, size)
                accesses.append(reading(buffer.address, size, f"input {tensor.name}"))
        for tensor, buffer in self._outs:
            if buffer.address and buffer.size:
                size = self._bytes(tensor, dims) or buffer.size
                machine.memory.view(buffer.address, size)
                room = align_up(size, 32) + machine.padding
                accesses.append(writing(buffer.address, room, f"output {tensor.name}"))
                machine.keep_weights(self._name, accesses[-1])
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
        if tensor.name in {GEAR_INPUT, AIPP_INPUT}:
            return tensor.size
        return size_of(tensor.dtype, dims[tensor.key])

    def _write_all(self, results: list[np.ndarray]) -> None:
        for (tensor, buffer), target, result in zip(
            self._outs, self._targets, results, strict=True
        ):
            self._write(tensor, buffer, target, np.frombuffer(result.tobytes(), np.uint8))
        if self._om.is_v2 or self._carries_desc:
            for at, ((tensor, _), result) in enumerate(zip(self._outs, results, strict=True)):
                desc = TensorDesc(tensor.dtype, result.shape, tensor.format, borrowed=True)
                attach_desc(self._machine, self._outputs, at, desc)

    def _write(
        self, tensor: Tensor, buffer: DataBuffer, target: tuple[int, int], raw: np.ndarray
    ) -> None:
        address, room = target
        if address == 0:
            memory = self._model.context.device.memory
            block = memory.allocate(max(len(raw), 1), refusal=Code.GE_MEMORY_ALLOCATION)
            address, room = buffer.address, buffer.size = block.start, len(raw)
        self._check_room(tensor, room, len(raw))
        if len(raw):
            self._machine.memory.view(address, len(raw))[:] = raw
