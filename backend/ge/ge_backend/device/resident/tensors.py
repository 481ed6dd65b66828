"""Tensors that stay on a device between the runs of several graphs: the seam that it may fill.

A run leaves some of its outputs in rooms instead of sending them to the host, and a later run, of
any graph of the same memory, takes rows of them as its input. What is copied from where is decided
here, in bytes; a device only makes the copies. A graph that can do it is a `KeepingGraph`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ge_backend.errors import ProtocolError
from ge_backend.tensors import Array, DataType, Shape

__all__ = ["Copy", "FedInput", "Keeper", "KeepingGraph", "Room", "Rows", "StayingOutput", "fed"]


class Room(Protocol):
    """Device memory for one tensor at a time."""

    @property
    def nbytes(self) -> int:
        """How many bytes fit."""

    def close(self) -> None:
        """Free it: nothing in flight uses it."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes of a room that become bytes of an input."""

    offset: int
    room: Room
    source: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Neighbouring rows of a tensor in a room.

    Attributes:
        shape: of the whole tensor, padding included; `[rows, size, …]`.
        first, count: which rows.
        length: the real size of their first dimension; 1 where they have none.
    """

    room: Room
    shape: Shape
    first: int
    count: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FedInput:
    """An input of a run that is made of rows in rooms.

    Attributes:
        fill: the byte that padding consists of; -1 where there is none.
        copies: made after filling.
    """

    dtype: DataType
    shape: Shape
    fill: int
    copies: tuple[Copy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StayingOutput:
    """An output of a run that is kept.

    Attributes:
        shape: what it is known to have; a run whose output has another one fails.
        shown: it goes to the host as well.
    """

    dtype: DataType
    shape: Shape
    room: Room
    shown: bool


class Keeper(Protocol):
    """Runs one graph with tensors that stay. Safe from several threads.

    Attributes:
        memory: keepers of one device and one memory may take what the others keep.
        granule: copies begin and end at multiples of so many bytes.
    """

    @property
    def memory(self) -> str:
        """Keepers of one device and one memory may take what the others keep."""

    @property
    def granule(self) -> int:
        """Copies begin and end at multiples of so many bytes."""

    def room(self, nbytes: int) -> Room:
        """Set memory aside.

        Raises:
            OutOfMemory: the device has not that much left.
        """

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        given: Mapping[str, FedInput],
        kept: Mapping[str, StayingOutput],
        dropped: Collection[str] = (),
    ) -> dict[str, Array]:
        """Run once; as `Graph.run`, and return when what is kept is there.

        Args:
            inputs: those that come from the host.
            outputs: as in `Graph.run`.
            given: the other inputs.
            kept: the outputs that stay; those that are not shown are not returned.
            dropped: outputs that nobody wants; they are not returned either.

        Raises:
            GraphFailed, OutOfMemory: as `Graph.run`; the rooms' contents are arbitrary then.
        """


@runtime_checkable
class KeepingGraph(Protocol):
    """A graph whose tensors can stay on its device."""

    def keeper(self) -> Keeper | None:
        """Return what runs it so, once it is compiled; None where its file rules that out."""


def fed(dtype: DataType, shape: Shape, fill: int, parts: Sequence[Rows]) -> FedInput:
    """Return an input that consists of these rows, padded as `batching/stage.py` pads on the host.

    What lies behind a row's real length is filled; rows behind the last real one repeat the first.

    Args:
        dtype: of both sides.
        shape: of the input, `[rows, size, …]`.
        fill: the byte that padding consists of.
        parts: the real rows, in order.

    Raises:
        ProtocolError: they are not in their rooms, or do not fit.
    """
    inner = math.prod(shape[2:]) * dtype.itemsize
    width = _length(shape) * inner
    copies: list[Copy] = []
    row = 0
    for part in parts:
        _check(part, shape)
        copies += _copies(part, row * width, width, inner)
        row += part.count
    if not 0 < row <= shape[0]:
        raise ProtocolError(f"{row} rows are given for an input of shape {list(shape)}")
    first = _copies(_one(parts[0]), 0, width, inner)[0]
    copies += [
        Copy(at * width, first.room, first.source, first.nbytes) for at in range(row, shape[0])
    ]
    padded = any(part.length != _length(shape) for part in parts)
    if padded and fill < 0:
        raise ProtocolError(
            "what padding consists of differs from byte to byte; it cannot be made on the device"
        )
    return FedInput(
        dtype=dtype,
        shape=shape,
        fill=fill if padded else -1,
        copies=tuple(copy for copy in copies if copy.nbytes),
    )


def _copies(part: Rows, offset: int, width: int, inner: int) -> list[Copy]:
    """Return the copies of some rows; one where they have no padding on either side."""
    wide, real = _length(part.shape) * inner, part.length * inner
    begin = part.first * wide
    if real == wide == width:
        return [Copy(offset, part.room, begin, real * part.count)]
    return [
        Copy(offset + row * width, part.room, begin + row * wide, real) for row in range(part.count)
    ]


def _length(shape: Shape) -> int:
    return shape[1] if len(shape) > 1 else 1


def _one(part: Rows) -> Rows:
    return Rows(room=part.room, shape=part.shape, first=part.first, count=1, length=part.length)


def _check(part: Rows, shape: Shape) -> None:
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
