"""Tensors that stay in an accelerator's memory between the runs of several torch programs.

All programs of a device compute in one stream, so a run that takes what another one has left there
needs to wait for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch

from ge_backend.device.pytorch.resident import ResidentGraph
from ge_backend.device.pytorch.streams import Streams
from ge_backend.device.resident.tensors import FedInput, Room, StayingOutput
from ge_backend.errors import GraphFailed, ProtocolError
from ge_backend.tensors import Array, DataType, Shape

__all__ = ["TorchKeeper"]

Tensors = Mapping[str, torch.Tensor]


class TorchKeeper:
    """Runs one graph; see `Keeper`.

    Args:
        streams: the device's.
        graph: stays the caller's.
        errors: makes ours of the engine's errors.
    """

    memory = "torch"
    granule = 1

    def __init__(
        self,
        streams: Streams,
        graph: ResidentGraph,
        errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._streams = streams
        self._graph = graph
        self._errors = errors

    def room(self, nbytes: int) -> Room:
        """Set memory aside; see `Keeper.room`."""
        with self._errors(), self._streams.computing():
            return _TorchRoom(self._streams.vendor.empty(nbytes))

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        given: Mapping[str, FedInput],
        kept: Mapping[str, StayingOutput],
        dropped: Collection[str] = (),
    ) -> dict[str, Array]:
        """Run once; see `Keeper.run`."""
        hidden = frozenset(name for name, item in kept.items() if not item.shown).union(dropped)
        step = _Step(streams=self._streams, given=given, kept=kept, hidden=hidden)
        return self._graph.run_resident(inputs, outputs, step)


class _TorchRoom:
    """Device memory; see `Room`. Queued work holds the block itself."""

    def __init__(self, block: torch.Tensor) -> None:
        self.nbytes = block.numel()
        self.block: torch.Tensor | None = block

    def close(self) -> None:
        """Let it go; see `Room.close`."""
        self.block = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What of one run stays; see `Resident`."""

    streams: Streams
    given: Mapping[str, FedInput]
    kept: Mapping[str, StayingOutput]
    hidden: frozenset[str]

    @property
    def stand_ins(self) -> Mapping[str, Array]:
        """See `Resident`."""
        return {
            name: np.broadcast_to(np.zeros((), item.dtype.numpy), item.shape)
            for name, item in self.given.items()
        }

    def rows(self) -> Tensors:
        """See `Resident`."""
        vendor = self.streams.vendor
        found = {}
        for name, item in self.given.items():
            block = vendor.empty(math.prod(item.shape) * item.dtype.itemsize)
            found[name] = _typed(block, item.dtype, item.shape)
        self.gather(found)
        self._wait()
        return found

    def keep(self, results: Tensors) -> None:
        """See `Resident`."""
        self.scatter(results)
        self._wait()

    def gather(self, given: Tensors) -> None:
        """See `Resident`."""
        vendor = self.streams.vendor
        for name, item in self.given.items():
            place = given[name].reshape(-1).view(torch.uint8)
            if item.fill >= 0:
                vendor.fill(place, item.fill)
            for copy in item.copies:
                source = _block(copy.room)[copy.source : copy.source + copy.nbytes]
                vendor.copy(place[copy.offset : copy.offset + copy.nbytes], source)

    def scatter(self, wanted: Tensors) -> None:
        """See `Resident`."""
        for name, item in self.kept.items():
            result = wanted.get(name)
            if result is None or tuple(result.shape) != item.shape:
                came = "does not exist" if result is None else f"is {list(result.shape)}"
                raise GraphFailed(
                    f"output {name!r}, which stays on the device, was to be {list(item.shape)} and "
                    f"{came}; correct the names of its dimensions"
                )
            self.streams.vendor.copy(_typed(_block(item.room), item.dtype, item.shape), result)

    def _wait(self) -> None:
        """Wait for the compute stream: what runs eagerly is not queued there by the vendor."""
        done = self.streams.vendor.new_event()
        done.record(self.streams.compute)
        done.synchronize()


def _typed(block: torch.Tensor, dtype: DataType, shape: Shape) -> torch.Tensor:
    nbytes = math.prod(shape) * dtype.itemsize
    return block[:nbytes].view(getattr(torch, dtype.torch)).view(shape)


def _block(room: Room) -> torch.Tensor:
    if not isinstance(room, _TorchRoom) or room.block is None:
        raise ProtocolError("a tensor that another engine keeps cannot be given to this model")
    return room.block
