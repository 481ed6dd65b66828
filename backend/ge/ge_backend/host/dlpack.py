"""BF16 tensors, which the host's Python API has no numpy type for, through DLPack.

A DLPack capsule is a pointer to a `DLManagedTensor`: where the data lies, its shape, its type, and
whom to call when it is no longer needed. Both ends stay on the CPU here.
Source: DLPack 0.8, include/dlpack/dlpack.h; `pb_utils.Tensor.from_dlpack` / `to_dlpack`.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from ge_backend.errors import InvalidRequest
from ge_backend.tensors import Array

__all__ = ["export_bf16", "import_bf16"]

CPU = 1
BFLOAT = 4
NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


def import_bf16(tensor: Any) -> Array:
    """Return a host tensor's bit patterns as a uint16 array of our own.

    Raises:
        InvalidRequest: the tensor is not BF16 on the CPU.
    """
    capsule = tensor.to_dlpack()
    pointer = _get_pointer(capsule, NAME)
    dl = ctypes.cast(pointer, ctypes.POINTER(_Managed)).contents.tensor
    if (dl.code, dl.bits, dl.device_type) != (BFLOAT, 16, CPU):
        raise InvalidRequest(f"input {tensor.name()!r} is not BF16 in CPU memory")
    shape = tuple(dl.shape[: dl.ndim])
    if 0 in shape:
        return np.empty(shape, np.uint16)
    block = (ctypes.c_uint16 * math.prod(shape)).from_address(dl.data + dl.byte_offset)
    return np.ctypeslib.as_array(block).reshape(shape).copy()


def export_bf16(array: Array) -> Any:
    """Return a capsule over a uint16 array of bit patterns; it keeps the array alive."""
    return _Export(np.ascontiguousarray(array)).capsule()


class _Export:
    """Owns everything that a capsule points to, until the consumer calls the deleter."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self._shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self._managed = _Managed(
            tensor=_Tensor(
                data=array.ctypes.data,
                device_type=CPU,
                device_id=0,
                ndim=array.ndim,
                code=BFLOAT,
                bits=16,
                lanes=1,
                shape=self._shape,
                strides=None,
                byte_offset=0,
            ),
            context=id(self),
            deleter=ctypes.cast(_release, ctypes.c_void_p),
        )

    def capsule(self) -> Any:
        """Return a capsule that holds one reference to this object."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        return _new_capsule(ctypes.addressof(self._managed), NAME, None)


def _drop_reference(managed: int) -> None:
    """Drop the reference that a capsule held."""
    owner = ctypes.cast(managed, ctypes.POINTER(_Managed)).contents.context
    ctypes.pythonapi.Py_DecRef(ctypes.cast(owner, ctypes.py_object))


# Made once and never freed: a deleter must outlive the call that it is in.
_release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_drop_reference)
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
