"""`acl.util`: between Python's objects and host addresses."""

import ctypes
import warnings

import numpy as np

from acl_simulator.machine.machine import Machine

__all__ = ["UtilCalls"]

NUMPY_TYPES = {
    np.dtype(kind).num: np.dtype(kind) for kind in np.typecodes["All"] if kind not in "SUVOMm"
}


class UtilCalls:
    """One machine's conversions."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def bytes_to_ptr(self, data: bytes) -> int:
        return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value

    def ptr_to_bytes(self, address: int, size: int) -> bytes:
        self._refuse_device(address, "ptr_to_bytes")
        return bytes(self._machine.memory.view(address, size))

    def numpy_to_ptr(self, array: np.ndarray) -> int:
        warnings.warn("numpy_to_ptr is deprecated: use bytes_to_ptr", DeprecationWarning, 3)
        if not array.flags.c_contiguous:
            self._machine.misuses.refuse("numpy_to_ptr of an array that is not contiguous")
        return array.ctypes.data

    def ptr_to_numpy(self, address: int, shape: tuple[int, ...], number: int) -> np.ndarray:
        warnings.warn("ptr_to_numpy is deprecated: use ptr_to_bytes", DeprecationWarning, 3)
        self._refuse_device(address, "ptr_to_numpy")
        dtype = NUMPY_TYPES[number]
        size = int(np.prod(shape)) * dtype.itemsize
        return self._machine.memory.view(address, size).view(dtype).reshape(shape)

    def numpy_contiguous_to_ptr(self, array: np.ndarray) -> tuple[int, np.ndarray]:
        contiguous = np.ascontiguousarray(array)
        return contiguous.ctypes.data, contiguous

    def _refuse_device(self, address: int, call: str) -> None:
        if self._machine.memory.device_of(address) is not None:
            self._machine.misuses.refuse(
                f"{call}({address:#x}): the host cannot read device memory; the process would crash"
            )
