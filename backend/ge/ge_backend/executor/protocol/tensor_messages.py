"""The messages about tensors: where those of a run are, in an arena or on the device.

What begins with Kept, Keep or Fed is about tensors that stay on the device between the runs of
several graphs of one owner; see `device/resident/buffers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ge_backend.tensors import Shape

__all__ = [
    "FedRef",
    "FreeTensors",
    "KeepTensors",
    "Keeps",
    "KeptRef",
    "KeptRows",
    "PrepareInput",
    "Room",
    "TensorRef",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRef:
    """Where a tensor lies in an arena: C order, `nbytes` from `offset`; BYTES serialised."""

    name: str
    dtype: str
    shape: Shape
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes of an arena that a run may fill with outputs whose shapes it alone knows."""

    offset: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRows:
    """Neighbouring rows of a tensor that stays on the device.

    Attributes:
        length: the real size of their first dimension; 1 where they have none.
    """

    key: int
    first: int
    count: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FedRef:
    """An input that is made on the device, of rows that earlier runs have left there.

    Attributes:
        shape: padding included; rows behind the last one given repeat the first.
        fill: the byte that padding consists of.
    """

    name: str
    dtype: str
    shape: Shape
    fill: int
    rows: tuple[KeptRows, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRef:
    """An output that stays on the device under a key, until that is freed.

    Attributes:
        shape: padding included.
        shown: it comes to the arena as well.
    """

    name: str
    dtype: str
    shape: Shape
    key: int
    shown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepTensors:
    """Let runs of a graph keep tensors on the device, for runs of all graphs of one owner.

    They end with the owner's last connection.

    Attributes:
        rooms: bytes of tensors to set memory aside for.
    """

    id: int
    graph: int
    owner: str
    rooms: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeps:
    """How tensors can be kept.

    Attributes:
        memory: graphs that name the same one may take each other's tensors; "": nothing stays.
        granule: only what begins and ends at multiples of so many bytes can be taken.
    """

    id: int
    memory: str
    granule: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeTensors:
    """Forget tensors that stay on the device; sent when no run that takes them is in flight."""

    id: int
    graph: int
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareInput:
    """A synthetic input: every element is `fill`."""

    name: str
    dtype: str
    shape: Shape
    fill: float
