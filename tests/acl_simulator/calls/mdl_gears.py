"""`acl.mdl`: choosing a gear before a run.

It does three things: it notes the gear with the dataset, for runs of that, and with the model, for
whoever asks for its current output shapes; and it copies it, at once, into the gear buffer that the
run will read. Source: hicann/ge api/acl/acl_model.
"""

from typing import Any

from acl_simulator.calls.mdl_datasets import Dataset, buffers_of
from acl_simulator.calls.tensors import DataBuffer
from acl_simulator.codes import Code
from acl_simulator.machine.hazards import writing
from acl_simulator.machine.kernel import encode_gear
from acl_simulator.machine.loaded import LoadedModel
from acl_simulator.machine.loader import Loader
from acl_simulator.machine.machine import Machine
from acl_simulator.om_file import GEAR_INPUT
from acl_simulator.refusals import Refusal
from acl_simulator.shapes import Dims

__all__ = ["GearCalls"]

NARROW = 4  # bytes of one value


class GearCalls:
    """One machine's gear calls."""

    def __init__(self, machine: Machine, loader: Loader) -> None:
        self._machine = machine
        self._loader = loader

    def set_dynamic_batch_size(self, number: int, dataset: int, at: int, batch: int) -> None:
        model, inputs, buffer = self._target(number, dataset, at, "batch")
        if batch == 0:
            raise Refusal(Code.INVALID_PARAM, "a batch of 0")
        self._set(model, inputs, buffer, (batch,))

    def set_dynamic_hw_size(
        self, number: int, dataset: int, at: int, height: int, width: int
    ) -> None:
        model, inputs, buffer = self._target(number, dataset, at, "hw")
        if 0 in (height, width):
            raise Refusal(Code.INVALID_PARAM, f"an image of {height} x {width}")
        self._set(model, inputs, buffer, (height, width))

    def set_input_dynamic_dims(
        self, number: int, dataset: int, at: int, shape: dict[str, Any]
    ) -> None:
        dims = _parse_dims(shape)
        model, inputs, buffer = self._target(number, dataset, at, "dims")
        self._set(model, inputs, buffer, _varying(model, dims))

    def _target(
        self, number: int, dataset: int, at: int, mode: str
    ) -> tuple[LoadedModel, Dataset, DataBuffer]:
        machine = self._machine
        model = self._loader.find(number)
        inputs: Dataset = machine.handles.get("dataset", dataset)
        buffers = buffers_of(machine, inputs)
        if at >= len(buffers):
            raise Refusal(Code.INVALID_PARAM, f"buffer {at} of {len(buffers)}")
        if model.om.shapes.mode != mode:
            raise Refusal(Code.INVALID_PARAM, f"{model} has no {mode} gears")
        names = [tensor.name for tensor in model.om.inputs]
        if at >= len(names) or names[at] != GEAR_INPUT:
            raise Refusal(Code.GE_DYNAMIC_INPUT_ADDRESS, f"input {at} is not {GEAR_INPUT}")
        if buffers[at].address == 0:
            raise Refusal(Code.INVALID_PARAM, f"the buffer of {GEAR_INPUT} is null")
        return model, inputs, buffers[at]

    def _set(self, model: LoadedModel, inputs: Dataset, buffer: DataBuffer, gear: Dims) -> None:
        machine = self._machine
        machine.context()
        if buffer.size < NARROW * len(gear):
            raise Refusal(
                Code.GE_DYNAMIC_INPUT_LENGTH,
                f"{GEAR_INPUT} has {buffer.size} bytes for {len(gear)} values",
            )
        if gear not in model.om.shapes.all_gears:
            raise Refusal(
                Code.GE_NOT_A_GEAR, f"{gear} is none of {model}'s gears {model.om.shapes.all_gears}"
            )
        if machine.memory.device_of(buffer.address) is None:
            machine.misuses.refuse(f"{GEAR_INPUT} is not in device memory")
        raw = encode_gear(gear, buffer.size)
        use = writing(buffer.address, len(raw), f"{GEAR_INPUT} of {model}")
        machine.hazards.touch("setting a gear", model.whole(), use)
        machine.memory.view(buffer.address, len(raw))[:] = bytearray(raw)
        model.gear = inputs.gear = gear


def _parse_dims(shape: dict[str, Any]) -> list[int]:
    """Return the dims as the C side reads them."""
    if "dimCount" not in shape:
        raise SystemError("set_input_dynamic_dims: dimCount is missing")
    count, dims = shape["dimCount"], shape.get("dims")
    if not isinstance(dims, list) or not all(isinstance(dim, int) for dim in dims):
        raise TypeError(f"acl.mdl.set_input_dynamic_dims args parse failed: dims {dims!r}")
    if len(dims) < count:
        raise TypeError(f"acl.mdl.set_input_dynamic_dims args parse failed: {count} of {dims!r}")
    return dims[:count]


def _varying(model: LoadedModel, dims: list[int]) -> Dims:
    """Return the values of the dimensions that vary; the others have to be the model's."""
    declared = model.om.shapes.joined(model.om.shapes.dims)
    if len(dims) != len(declared):
        raise Refusal(
            Code.GE_DYNAMIC_INPUT_LENGTH, f"{len(dims)} dims {dims}, the inputs have {declared}"
        )
    for given, own in zip(dims, declared, strict=True):
        if own not in (-1, given):
            raise Refusal(Code.GE_DYNAMIC_INPUT_LENGTH, f"dims {dims} do not fit {declared}")
    return tuple(given for given, own in zip(dims, declared, strict=True) if own == -1)
