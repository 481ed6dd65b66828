"""`acl.*`: data buffers and tensor descriptions, the records that datasets are made of."""

import math
from dataclasses import dataclass
from operator import index

from acl_simulator.codes import DATA_TYPES, Code
from acl_simulator.machine.machine import Machine
from acl_simulator.refusals import Refusal

__all__ = ["DataBuffer", "TensorCalls", "TensorDesc"]

MAX_DIMS = 128


@dataclass(slots=True, eq=False)
class DataBuffer:
    """An address and a size; it does not own the memory."""

    address: int
    size: int


@dataclass(slots=True, eq=False)
class TensorDesc:
    """A tensor's type, shape and layout; `borrowed` if a dataset owns it."""

    dtype: int
    dims: tuple[int, ...]
    format: int
    borrowed: bool = False


class TensorCalls:
    """One machine's calls for records."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def create_data_buffer(self, address: int, size: int) -> int:
        return self._machine.handles.issue("data buffer", DataBuffer(address, size))

    def destroy_data_buffer(self, handle: int) -> None:
        self._machine.handles.release("data buffer", handle)

    def get_data_buffer_addr(self, handle: int) -> int:
        return self._buffer(handle).address

    def get_data_buffer_size(self, handle: int) -> int:
        return self._buffer(handle).size & 0xFFFF_FFFF

    def get_data_buffer_size_v2(self, handle: int) -> int:
        return self._buffer(handle).size

    def update_data_buffer(self, handle: int, address: int, size: int) -> None:
        buffer = self._buffer(handle)
        buffer.address, buffer.size = address, size

    def create_tensor_desc(self, dtype: int, dims: list[int], layout: int) -> int:
        if len(dims) > MAX_DIMS or dtype not in DATA_TYPES:
            raise Refusal(Code.INVALID_PARAM, f"a tensor of type {dtype} and dims {dims}")
        shape = tuple(index(dim) for dim in dims)
        return self._machine.handles.issue("tensor desc", TensorDesc(dtype, shape, layout))

    def destroy_tensor_desc(self, handle: int) -> None:
        if self._desc(handle).borrowed:
            self._machine.misuses.refuse("destroy_tensor_desc of one that a dataset owns")
        self._machine.handles.release("tensor desc", handle)

    def get_tensor_desc_type(self, handle: int) -> int:
        return self._desc(handle).dtype

    def get_tensor_desc_format(self, handle: int) -> int:
        return self._desc(handle).format

    def get_tensor_desc_size(self, handle: int) -> int:
        dtype = self._desc(handle).dtype
        return self.get_tensor_desc_element_count(handle) * DATA_TYPES[dtype][1].itemsize

    def get_tensor_desc_element_count(self, handle: int) -> int:
        return math.prod(self._desc(handle).dims)

    def get_tensor_desc_num_dims(self, handle: int) -> int:
        return len(self._desc(handle).dims)

    def get_tensor_desc_dim(self, handle: int, at: int) -> int:
        return self.get_tensor_desc_dim_v2(handle, at)

    def get_tensor_desc_dim_v2(self, handle: int, at: int) -> int:
        dims = self._desc(handle).dims
        if at >= len(dims):
            raise Refusal(Code.INVALID_PARAM, f"dimension {at} of {dims}")
        return dims[at]

    def _buffer(self, handle: int) -> DataBuffer:
        return self._machine.handles.get("data buffer", handle)

    def _desc(self, handle: int) -> TensorDesc:
        return self._machine.handles.get("tensor desc", handle)
