"""`acl.mdl`: datasets, the lists of buffers that a run reads or writes."""

from dataclasses import dataclass, field

from acl_simulator.calls.tensors import DataBuffer, TensorDesc
from acl_simulator.codes import Code
from acl_simulator.machine.machine import Machine
from acl_simulator.refusals import Refusal

__all__ = ["Dataset", "DatasetCalls", "attach_desc", "buffers_of"]


@dataclass(slots=True, eq=False)
class Dataset:
    """Handles of data buffers, and of the tensor descriptions that belong to some of them.

    Attributes:
        gear: what was set for runs of these inputs; None: the largest runs.
        aipp: mean and scale that were set for their images.
    """

    buffers: list[int] = field(default_factory=list)
    descs: dict[int, int] = field(default_factory=dict)
    gear: tuple[int, ...] | None = None
    aipp: tuple[tuple[float, ...], tuple[float, ...]] | None = None


class DatasetCalls:
    """One machine's dataset calls."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def create_dataset(self) -> int:
        return self._machine.handles.issue("dataset", Dataset())

    def destroy_dataset(self, handle: int) -> None:
        dataset: Dataset = self._machine.handles.release("dataset", handle)
        for desc in dataset.descs.values():
            self._machine.handles.release("tensor desc", desc)

    def add_dataset_buffer(self, handle: int, buffer: int) -> int:
        dataset = self._dataset(handle)
        self._machine.handles.get("data buffer", buffer)
        dataset.buffers.append(buffer)
        return handle

    def get_dataset_num_buffers(self, handle: int) -> int:
        return len(self._dataset(handle).buffers)

    def get_dataset_buffer(self, handle: int, at: int) -> int:
        buffers = self._dataset(handle).buffers
        if at >= len(buffers):
            raise Refusal(Code.INVALID_PARAM, f"buffer {at} of {len(buffers)}")
        return buffers[at]

    def set_dataset_tensor_desc(self, handle: int, desc: int, at: int) -> int:
        dataset = self._dataset(handle)
        if at >= len(dataset.buffers):
            raise Refusal(Code.INVALID_PARAM, f"buffer {at} of {len(dataset.buffers)}")
        copied: TensorDesc | None = None
        if desc:
            given: TensorDesc = self._machine.handles.get("tensor desc", desc)
            copied = TensorDesc(given.dtype, given.dims, given.format, borrowed=True)
        attach_desc(self._machine, dataset, at, copied)
        return handle

    def get_dataset_tensor_desc(self, handle: int, at: int) -> int:
        return self._dataset(handle).descs.get(at, 0)

    def _dataset(self, handle: int) -> Dataset:
        return self._machine.handles.get("dataset", handle)


def attach_desc(machine: Machine, dataset: Dataset, at: int, desc: TensorDesc | None) -> None:
    """Let a dataset own a description of one buffer, instead of the one it had."""
    old = dataset.descs.pop(at, 0)
    if old:
        machine.handles.release("tensor desc", old)
    if desc is not None:
        dataset.descs[at] = machine.handles.issue("tensor desc", desc)


def buffers_of(machine: Machine, dataset: Dataset) -> list[DataBuffer]:
    """Return a dataset's buffers."""
    return [machine.handles.get("data buffer", handle) for handle in dataset.buffers]
