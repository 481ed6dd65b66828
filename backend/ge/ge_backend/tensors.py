"""Data types and tensor descriptions: one table for Triton, numpy, ONNX and torch names.

Two types have no numpy counterpart. `BF16` is held as its bit patterns in `uint16`
(`bf16_to_float32` / `float32_to_bf16` are inverses up to rounding). `BYTES` is an object array of
`bytes`; where it has to be one block of memory it is Triton's own serialisation, each element a
little-endian u32 length and then its bytes (`encode_bytes` / `decode_bytes` are inverses).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ge_backend.errors import ConfigError, InvalidRequest

__all__ = [
    "ANY_SHAPE",
    "BUCKETED",
    "DATA_TYPES",
    "PACKED",
    "PREPARED",
    "SHAPE_POLICIES",
    "Array",
    "DataType",
    "Shape",
    "ShapePolicy",
    "Signature",
    "TensorSpec",
    "agree",
    "bf16_to_float32",
    "data_type",
    "decode_bytes",
    "encode_bytes",
    "float32_to_bf16",
]

# Of a BYTES element, before its bytes. Source: see `encode_bytes`.
LENGTH_BYTES = 4

Shape = tuple[int, ...]
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataType:
    """One element type under all its names.

    Attributes:
        name: Triton's wire name, `FP32`; in config.pbtxt `TYPE_FP32` (BYTES: `TYPE_STRING`).
        numpy: the storage type; `uint16` bit patterns for BF16, `object` for BYTES.
        onnx: ONNX Runtime's name, as in `tensor(float)`.
        torch: the attribute of `torch`, or "" where torch has no such type.
        itemsize: bytes of one element; 0 for BYTES, whose elements differ.
    """

    name: str
    numpy: np.dtype[Any]
    onnx: str
    torch: str
    itemsize: int

    @property
    def config_name(self) -> str:
        """The name in config.pbtxt."""
        return "TYPE_STRING" if self.name == "BYTES" else f"TYPE_{self.name}"


_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("BOOL", "bool", "bool", "bool"),
    ("UINT8", "uint8", "uint8", "uint8"),
    ("UINT16", "uint16", "uint16", "uint16"),
    ("UINT32", "uint32", "uint32", "uint32"),
    ("UINT64", "uint64", "uint64", "uint64"),
    ("INT8", "int8", "int8", "int8"),
    ("INT16", "int16", "int16", "int16"),
    ("INT32", "int32", "int32", "int32"),
    ("INT64", "int64", "int64", "int64"),
    ("FP16", "float16", "float16", "float16"),
    ("FP32", "float32", "float", "float32"),
    ("FP64", "float64", "double", "float64"),
    ("BF16", "uint16", "bfloat16", "bfloat16"),
    ("BYTES", "object", "string", ""),
)

DATA_TYPES: Mapping[str, DataType] = {
    name: DataType(
        name=name,
        numpy=np.dtype(numpy),
        onnx=onnx,
        torch=torch,
        itemsize=0 if name == "BYTES" else np.dtype(numpy).itemsize,
    )
    for name, numpy, onnx, torch in _ROWS
}


def agree(one: Shape, other: Shape) -> bool:
    """Whether two shapes can be the same: as many dims, equal where both are known (-1 is free)."""
    return len(one) == len(other) and all(
        a == b or a < 0 or b < 0 for a, b in zip(one, other, strict=True)
    )


def data_type(name: str) -> DataType:
    """Return the data type of a Triton name, with or without `TYPE_`.

    Raises:
        ConfigError: the name is none of Triton's.
    """
    short = name.removeprefix("TYPE_")
    short = "BYTES" if short == "STRING" else short
    if short not in DATA_TYPES:
        known = ", ".join(known.config_name for known in DATA_TYPES.values())
        raise ConfigError(f"data type {name!r} is unknown; known are {known}")
    return DATA_TYPES[short]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """What a graph or a configuration says about one tensor.

    Attributes:
        dims: one size per dimension, the batch dimension included where there is one; -1 is free.
        axes: a name per dimension. Two free dimensions of one name always have the same size
            (ONNX symbolic dims, torch.export symbols); "" means nothing is known.
        optional: the graph runs without it.
        fill: what padding is filled with, unless the configuration says otherwise.
    """

    name: str
    dtype: DataType
    dims: Shape
    axes: tuple[str, ...]
    optional: bool = False
    fill: float = 0.0

    def describe(self) -> str:
        """Return `FP32 [batch, 384]`, for messages."""
        shown = (
            axis or "?" if dim < 0 else str(dim)
            for dim, axis in zip(self.dims, self.axes, strict=True)
        )
        return f"{self.dtype.name} [{', '.join(shown)}]"

    def shape(self, sizes: Mapping[str, int]) -> Shape | None:
        """Return the shape for these axis sizes; None where a free axis is not among them."""
        known = [
            dim if dim >= 0 else sizes.get(axis, -1)
            for dim, axis in zip(self.dims, self.axes, strict=True)
        ]
        return None if any(dim < 0 for dim in known) else tuple(known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The inputs and outputs of a graph, in the graph's order.

    Attributes:
        axis_limits: the largest size that the graph itself allows, by axis name, where it says so.
        axis_least: the smallest size that the graph takes, by axis name, where that is above 1.
        lengths: by the name of an outputs' axis, the output that tells each row's real size along
            it; behind that size a row is padding. The output has one whole number per row,
            `[batch]` or `[batch, 1]`, or it is a mask over the axis, 1 for real places.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    axis_limits: Mapping[str, int]
    lengths: Mapping[str, str] = field(default_factory=dict)
    axis_least: Mapping[str, int] = field(default_factory=dict)

    def input(self, name: str) -> TensorSpec | None:
        """Return the input of that name, or None."""
        return next((spec for spec in self.inputs if spec.name == name), None)

    def output(self, name: str) -> TensorSpec | None:
        """Return the output of that name, or None."""
        return next((spec for spec in self.outputs if spec.name == name), None)


SHAPE_POLICIES = ("any", "packed", "bucketed", "prepared")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapePolicy:
    """Which shapes of inputs a graph runs, and so whether rows are padded to buckets.

    Attributes:
        runs: one of `SHAPE_POLICIES`. `any`: each shape alike, so that a run at the rows' own
            longest size costs less than one in a bucket. `packed`: any, and it leaves the padding
            of its rows out, as their mask says: a run costs the elements that are not masked,
            however unequal its rows are. `bucketed`: any, but each new one takes time to make
            ready, and with some engines memory for ever; where a bucket covers rows they are padded
            to it, and all are compiled and prepared at load. `prepared`: only those that were
            prepared.
        fixed: the only sets of input shapes that run, by input name, and so the model's buckets.
            Empty where the file leaves them open.
    """

    runs: str = "any"
    fixed: tuple[Mapping[str, Shape], ...] = ()

    @property
    def packed(self) -> bool:
        """Whether a run costs its elements alone."""
        return self.runs == "packed"

    @property
    def bucketed(self) -> bool:
        """Whether rows are padded to buckets although any shape runs."""
        return self.runs == "bucketed"

    @property
    def prepared(self) -> bool:
        """Whether only prepared shapes run, so that rows must be padded to a bucket."""
        return self.runs == "prepared"

    @property
    def padded(self) -> bool:
        """Whether rows are padded to buckets."""
        return self.bucketed or self.prepared


ANY_SHAPE = ShapePolicy(runs="any")
PACKED = ShapePolicy(runs="packed")
BUCKETED = ShapePolicy(runs="bucketed")
PREPARED = ShapePolicy(runs="prepared")


def encode_bytes(array: Array) -> bytes:
    """Return a BYTES tensor as one block: per element a little-endian u32 length, then the bytes.

    `str` elements are encoded as UTF-8. Inverse of `decode_bytes`.
    Source: Triton's binary tensor data extension (triton-inference-server/server docs/protocol).
    """
    parts: list[bytes] = []
    for element in array.reshape(-1):
        raw = element.encode() if isinstance(element, str) else bytes(element)
        parts.append(struct.pack("<I", len(raw)))
        parts.append(raw)
    return b"".join(parts)


def decode_bytes(block: bytes | memoryview, shape: Shape) -> Array:
    """Return the object array of `bytes` that `encode_bytes` wrote; the elements are copies.

    Raises:
        InvalidRequest: the block ends early or holds more than `shape` says.
    """
    view = memoryview(block).cast("B")
    count = math.prod(shape)
    if LENGTH_BYTES * count > len(view):  # before there is an array of that size
        raise InvalidRequest(
            f"BYTES tensor of shape {shape}: {count} elements take {LENGTH_BYTES * count} bytes "
            f"for their lengths alone, the data has {len(view)} bytes; make the shape and the data "
            "agree"
        )
    flat = np.empty(count, dtype=object)
    at = 0
    for index in range(flat.size):
        end = at + LENGTH_BYTES
        length = struct.unpack_from("<I", view, at)[0] if end <= len(view) else 0
        if end + length > len(view):
            raise InvalidRequest(
                f"BYTES tensor of shape {shape}: element {index} ends at byte {end + length}, "
                f"the data has {len(view)} bytes; send a length and that many bytes per element"
            )
        flat[index] = bytes(view[end : end + length])
        at = end + length
    if at != len(view):
        raise InvalidRequest(
            f"BYTES tensor of shape {shape}: {flat.size} elements take {at} bytes, "
            f"the data has {len(view)} bytes; make the shape and the data agree"
        )
    return flat.reshape(shape)


def bf16_to_float32(bits: Array) -> Array:
    """Return float32 values of BF16 bit patterns (uint16), exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float32_to_bf16(values: Array) -> Array:
    """Return BF16 bit patterns (uint16) of float32 values, to nearest even; NaN stays NaN."""
    bits = np.asarray(values, dtype=np.float32, order="C").view(np.uint32)
    rounding = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + rounding) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
