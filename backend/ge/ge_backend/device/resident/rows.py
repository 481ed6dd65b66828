"""How bytes of device tensors become an input of another run: rows, cut, regrouped, padded anew."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ge_backend.device.resident.buffers import BoundTensor, Copy, DeviceBuffer
from ge_backend.errors import ProtocolError
from ge_backend.tensors import DataType, Shape

__all__ = ["BufferRows", "gathered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferRows:
    """Neighbouring rows of a tensor in a buffer.

    Attributes:
        shape: of the whole tensor, padding included; `[rows, size, …]`.
        first, count: which rows.
        length: the real size of their first dimension; 1 where they have none.
    """

    buffer: DeviceBuffer
    shape: Shape
    first: int
    count: int
    length: int


def gathered(dtype: DataType, shape: Shape, fill: int, parts: Sequence[BufferRows]) -> BoundTensor:
    """Return an input that consists of these rows, padded as staging pads on the host.

    What lies behind a row's real length is filled; rows behind the last real one repeat the first.

    Args:
        dtype: of both sides.
        shape: of the input, `[rows, size, …]`.
        fill: the byte that padding consists of; -1 where its bytes differ.
        parts: the real rows, in order.

    Raises:
        ProtocolError: they are not in their buffers, or do not fit.
    """
    inner = math.prod(shape[2:]) * dtype.itemsize
    sources: list[Copy] = []  # of each row; offsets follow
    for part in parts:
        _check(part, shape)
        sources += _rows(part, inner)
    if not 0 < len(sources) <= shape[0]:
        raise ProtocolError(f"{len(sources)} rows are given for an input of shape {list(shape)}")
    sources += sources[:1] * (shape[0] - len(sources))
    padded = any(part.length != _length(shape) for part in parts)
    if padded and fill < 0:
        raise ProtocolError(
            "what padding consists of differs from byte to byte; it cannot be made on the device"
        )
    width = _length(shape) * inner
    return BoundTensor(
        dtype=dtype,
        shape=shape,
        fill=fill if padded else -1,
        copies=tuple(
            replace(row, offset=at * width) for at, row in enumerate(sources) if row.nbytes
        ),
    )


def _rows(part: BufferRows, inner: int) -> Iterator[Copy]:
    wide, real = _length(part.shape) * inner, part.length * inner
    for row in range(part.first, part.first + part.count):
        yield Copy(0, part.buffer, row * wide, real)


def _length(shape: Shape) -> int:
    return shape[1] if len(shape) > 1 else 1


def _check(part: BufferRows, shape: Shape) -> None:
    there = part.first >= 0 and part.count > 0 and part.first + part.count <= part.shape[0]
    fits = (
        len(part.shape) == len(shape) >= 1
        and part.shape[2:] == shape[2:]
        and 0 <= part.length <= min(_length(part.shape), _length(shape))
    )
    if not (there and fits):
        raise ProtocolError(
            f"{part.count} rows of length {part.length}, from row {part.first} of a kept tensor of "
            f"shape {list(part.shape)} on, cannot be given to an input of shape {list(shape)}"
        )
