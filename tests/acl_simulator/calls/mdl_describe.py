"""`acl.mdl`: what a model's inputs and outputs are, and which gears it has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from acl_simulator.codes import Code
from acl_simulator.machine.loaded import LoadedModel
from acl_simulator.machine.loader import Loader
from acl_simulator.machine.machine import Machine
from acl_simulator.om_file import Om, Tensor
from acl_simulator.refusals import Refusal

__all__ = ["DescribeCalls"]

ANY_INDEX = 2**64 - 1  # -1, as a size_t
MAX_GEARS = 4096
MAX_DIMS = 128  # ACL_MAX_DIM_CNT, which api/acl/acl_model/model/model_om2.cpp holds gears against


@dataclass(slots=True, eq=False)
class ModelDesc:
    """A description: empty, of a file, or of a loaded model."""

    om: Om | None = None
    model: LoadedModel | None = None


class DescribeCalls:
    """One machine's description calls."""

    def __init__(self, machine: Machine, loader: Loader) -> None:
        self._machine = machine
        self._loader = loader

    def create_desc(self) -> int:
        return self._machine.handles.issue("model desc", ModelDesc())

    def destroy_desc(self, handle: int) -> None:
        self._machine.handles.release("model desc", handle)

    def get_desc(self, handle: int, number: int) -> None:
        desc: ModelDesc = self._machine.handles.get("model desc", handle)
        desc.model = self._loader.find(number)
        desc.om = desc.model.om

    def get_desc_from_file(self, handle: int, path: str) -> None:
        desc: ModelDesc = self._machine.handles.get("model desc", handle)
        desc.om, desc.model = self._loader.read_path(path), None

    def get_desc_from_mem(self, handle: int, address: int, size: int) -> None:
        desc: ModelDesc = self._machine.handles.get("model desc", handle)
        desc.om, desc.model = self._loader.read_bytes(address, size), None

    def get_num_inputs(self, handle: int) -> int:
        return len(self._om(handle).inputs)

    def get_num_outputs(self, handle: int) -> int:
        return len(self._om(handle).outputs)

    def get_input_size_by_index(self, handle: int, at: int) -> int:
        return self._input(handle, at).size

    def get_output_size_by_index(self, handle: int, at: int) -> int:
        return self._output(handle, at).size

    def get_input_name_by_index(self, handle: int, at: int) -> str:
        return self._input(handle, at).name

    def get_output_name_by_index(self, handle: int, at: int) -> str:
        return self._output(handle, at).name

    def get_input_index_by_name(self, handle: int, name: str) -> int:
        return _index(self._om(handle).inputs, name)

    def get_output_index_by_name(self, handle: int, name: str) -> int:
        return _index(self._om(handle).outputs, name)

    def get_input_data_type(self, handle: int, at: int) -> int:
        return self._input(handle, at).dtype

    def get_output_data_type(self, handle: int, at: int) -> int:
        return self._output(handle, at).dtype

    def get_input_format(self, handle: int, at: int) -> int:
        return self._input(handle, at).format

    def get_output_format(self, handle: int, at: int) -> int:
        return self._output(handle, at).format

    def get_input_dims(self, handle: int, at: int) -> dict[str, Any]:
        tensor = self._input(handle, at)
        return _dims(tensor.name, tensor.dims)

    def get_input_dims_v2(self, handle: int, at: int) -> dict[str, Any]:
        return self.get_input_dims(handle, at)

    def get_output_dims(self, handle: int, at: int) -> dict[str, Any]:
        tensor = self._output(handle, at)
        return _dims(tensor.name, tensor.dims)

    def get_cur_output_dims(self, handle: int, at: int) -> dict[str, Any]:
        """Return the shape in the gear that was set, else in the largest."""
        om = self._om(handle)
        tensor = self._output(handle, at)
        if om.is_v2:
            raise Refusal(Code.NOT_SUPPORTED, "RuntimeV2 runs the model: see the dataset's desc")
        model = self._machine.handles.get("model desc", handle).model
        if model is None:
            raise Refusal(Code.INVALID_PARAM, "the description is a file's, not a loaded model's")
        return _dims(tensor.name, om.output_dims(model.gear or om.largest)[tensor.key])

    def get_input_dims_range(self, handle: int, at: int) -> dict[str, Any]:
        om = self._om(handle)
        tensor = self._input(handle, at)
        limits = om.shapes.limits(tensor.name) if om.is_range else [[d, d] for d in tensor.dims]
        return {"rangeCount": len(limits), "range": limits}

    def get_dynamic_batch(self, handle: int) -> dict[str, Any]:
        gears = self._gears(handle, "batch")
        return {"batchCount": len(gears), "batch": [batch for (batch,) in gears]}

    def get_dynamic_hw(self, handle: int, at: int) -> dict[str, Any]:
        gears = self._gears(handle, "hw")
        return {"hwCount": len(gears), "hw": [list(gear) for gear in gears]}

    def get_input_dynamic_gear_count(self, handle: int, at: int) -> int:
        self._om(handle)
        if at != ANY_INDEX:
            raise Refusal(Code.INVALID_PARAM, "the index must be -1")
        count = len(self._gears(handle, "dims"))
        if count > MAX_DIMS:
            raise Refusal(Code.STORAGE_OVER_LIMIT, f"{count} gears, at most {MAX_DIMS} are listed")
        return count

    def get_input_dynamic_dims(self, handle: int, at: int, count: int) -> list[dict[str, Any]]:
        gears = self._gears(handle, "dims")
        if count > MAX_GEARS:
            raise Refusal(Code.INVALID_PARAM, f"{count} gears, at most {MAX_GEARS}", value=None)
        if at != ANY_INDEX or count < len(gears):
            raise Refusal(Code.INVALID_PARAM, f"index {at} must be -1, {count} gears too few")
        shapes = self._om(handle).shapes
        return [_dims("", shapes.joined(shapes.fill(gear))) for gear in gears]

    def _om(self, handle: int) -> Om:
        desc: ModelDesc = self._machine.handles.get("model desc", handle)
        if desc.om is None:
            raise Refusal(Code.INVALID_PARAM, "the description is empty")
        return desc.om

    def _input(self, handle: int, at: int) -> Tensor:
        return _pick("input", self._om(handle).inputs, at)

    def _output(self, handle: int, at: int) -> Tensor:
        return _pick("output", self._om(handle).outputs, at)

    def _gears(self, handle: int, mode: str) -> list[tuple[int, ...]]:
        shapes = self._om(handle).shapes
        return shapes.all_gears if shapes.mode == mode else []


def _pick(kind: str, tensors: Sequence[Tensor], at: int) -> Tensor:
    if at >= len(tensors):
        raise Refusal(Code.INVALID_PARAM, f"{kind} {at} of {len(tensors)}")
    return tensors[at]


def _index(tensors: Sequence[Tensor], name: str) -> int:
    names = [tensor.name for tensor in tensors]
    if name not in names:
        raise Refusal(Code.INVALID_PARAM, f"no tensor {name!r} among {names}")
    return names.index(name)


def _dims(name: str, dims: Sequence[int]) -> dict[str, Any]:
    return {"name": name, "dimCount": len(dims), "dims": list(dims)}
