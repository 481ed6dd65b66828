"""Tensors that stay in an NPU's memory between the runs of several offline models.

A model's output is copied whole into a room, and rows of it from there into other models' inputs,
on the stream of the run that it belongs to. Such copies must begin at 64-byte boundaries.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ge_backend.device.acl.codes import ALIGNMENT
from ge_backend.device.acl.device import AclDevice
from ge_backend.device.acl.memory import Block
from ge_backend.device.acl.resident import Resident, ResidentGraph
from ge_backend.device.acl.resident import Rows as KeptRows
from ge_backend.device.resident.tensors import Copy, FedInput, Room, StayingOutput
from ge_backend.errors import ProtocolError
from ge_backend.tensors import Array

__all__ = ["AclKeeper"]


class AclKeeper:
    """Runs one graph; see `Keeper`.

    Args:
        device: the graph's.
        graph: stays the caller's.
    """

    memory = "acl"
    granule = ALIGNMENT

    def __init__(self, device: AclDevice, graph: ResidentGraph) -> None:
        self._device = device
        self._graph = graph

    def room(self, nbytes: int) -> Room:
        """Set memory aside; see `Keeper.room`."""
        with self._device.entered():
            return _AclRoom(self._device, nbytes)

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        given: Mapping[str, FedInput],
        kept: Mapping[str, StayingOutput],
        dropped: Collection[str] = (),
    ) -> dict[str, Array]:
        """Run once; see `Keeper.run`."""
        resident = Resident(
            shapes={name: item.shape for name, item in given.items()},
            fills={name: item.fill for name, item in given.items() if item.fill >= 0},
            sources={name: _Pieces(item.copies) for name, item in given.items()},
            targets={name: _whole(item) for name, item in kept.items() if math.prod(item.shape)},
            promised={name: item.shape for name, item in kept.items()},
            hidden=frozenset(name for name, item in kept.items() if not item.shown).union(dropped),
        )
        return self._graph.run_resident(inputs, outputs, resident)


class _AclRoom:
    """Device memory; see `Room`."""

    def __init__(self, device: AclDevice, nbytes: int) -> None:
        self._device = device
        self._block = Block(device.runtime, nbytes, "tensors between the steps of an ensemble")
        self.nbytes = nbytes
        self.address = self._block.address

    def close(self) -> None:
        """Free it; see `Room.close`."""
        self._device.settle()
        self._block.close()


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Where an input's bytes come from; see `Spans`."""

    copies: tuple[Copy, ...]

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield (offset in the tensor, address, bytes)."""
        for copy in self.copies:
            yield copy.offset, _address(copy.room) + copy.source, copy.nbytes


def _whole(item: StayingOutput) -> KeptRows:
    """Return a room as the place of a whole tensor, row by row: they lie side by side."""
    rows, *dims = item.shape
    nbytes = math.prod(dims) * item.dtype.itemsize
    first = _address(item.room)
    return KeptRows(nbytes=nbytes, places=tuple(first + row * nbytes for row in range(rows)))


def _address(room: Room) -> int:
    if not isinstance(room, _AclRoom):
        raise ProtocolError("a tensor that another engine keeps cannot be given to this model")
    return room.address
