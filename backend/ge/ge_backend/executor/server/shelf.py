"""What stays on the device between the runs of several graphs: one shelf per owner.

The steps of a fused ensemble have a connection each and share a shelf, which lasts as long as one
of them is open. A tensor lies there under a key that the stub has chosen, in a room; when it is
freed its room serves the next one, so that memory is only taken while batches grow.
"""

from __future__ import annotations

import contextlib
import math
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ge_backend.device.base import Graph
from ge_backend.device.resident.tensors import (
    FedInput,
    Keeper,
    KeepingGraph,
    Room,
    Rows,
    StayingOutput,
    fed,
)
from ge_backend.errors import ProtocolError, TensorsLost
from ge_backend.executor.protocol.messages import (
    FedRef,
    FreeTensors,
    Keeps,
    KeepTensors,
    KeptRef,
    Run,
)
from ge_backend.tensors import DATA_TYPES, Array, Shape

__all__ = ["KeptGraphs", "KeptRun", "Shelf", "Shelves"]


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor on a shelf."""

    memory: str
    room: Room
    dtype: str
    shape: Shape


class Shelf:
    """The tensors that one owner keeps on the device. Safe from several threads."""

    def __init__(self) -> None:
        self.holders = 0
        self._tensors: dict[int, _Tensor] = {}
        self._idle: dict[str, list[Room]] = {}  # by memory
        self._users = 0
        self._changed = threading.Condition()

    @property
    def num_tensors(self) -> int:
        """How many tensors are kept."""
        with self._changed:
            return len(self._tensors)

    @property
    def num_bytes(self) -> int:
        """The device memory that the shelf has, for tensors that are kept or will be."""
        with self._changed:
            kept = sum(tensor.room.nbytes for tensor in self._tensors.values())
            return kept + sum(room.nbytes for rooms in self._idle.values() for room in rooms)

    def reserve(self, keeper: Keeper, rooms: Sequence[int]) -> None:
        """Set rooms of these sizes aside, so that no run has to.

        Raises:
            OutOfMemory: the device has not that much left; then none is.
        """
        with contextlib.ExitStack() as taken:
            found = []
            for nbytes in rooms:
                found.append(keeper.room(nbytes))
                taken.callback(found[-1].close)
            taken.pop_all()
        with self._changed:
            self._idle.setdefault(keeper.memory, []).extend(found)

    def run(
        self, keeper: Keeper, message: Run, inputs: Mapping[str, Array], views: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Run a graph on tensors of the shelf, and keep what the message says.

        Raises:
            TensorsLost: a tensor is not here.
            GraphFailed, OutOfMemory: as `Keeper.run`; nothing more is kept then.
        """
        with self._in_use(), contextlib.ExitStack() as taken:
            given = {ref.name: self._fed(keeper, ref) for ref in message.fed}
            staying = {ref.name: self._staying(keeper, ref, taken) for ref in message.kept}
            results = keeper.run(inputs, views, given, staying, message.dropped)
            self.free([ref.key for ref in message.kept])
            with self._changed:
                for ref in message.kept:
                    tensor = _Tensor(keeper.memory, staying[ref.name].room, ref.dtype, ref.shape)
                    self._tensors[ref.key] = tensor
            taken.pop_all()
        return results

    def free(self, keys: Sequence[int]) -> None:
        """Give the rooms of these tensors to others; keys that are not here mean nothing."""
        with self._changed:
            for key in keys:
                tensor = self._tensors.pop(key, None)
                if tensor is not None:
                    self._idle.setdefault(tensor.memory, []).append(tensor.room)

    def close(self) -> None:
        """Free all memory, once no run uses it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._users)
            rooms = [tensor.room for tensor in self._tensors.values()]
            rooms += [room for idle in self._idle.values() for room in idle]
            self._tensors.clear()
            self._idle.clear()
        for room in rooms:
            room.close()

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._changed:
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def _fed(self, keeper: Keeper, ref: FedRef) -> FedInput:
        parts = []
        for rows in ref.rows:
            with self._changed:
                tensor = self._tensors.get(rows.key)
            if tensor is None:
                raise TensorsLost(
                    f"input {ref.name!r} is no longer on the device; the executor was started anew "
                    "since, see the server's log for the reason"
                )
            if (tensor.memory, tensor.dtype) != (keeper.memory, ref.dtype):
                raise ProtocolError(
                    f"input {ref.name!r} is {ref.dtype} in {keeper.memory!r} memory; the tensor "
                    f"that is kept for it is {tensor.dtype} in {tensor.memory!r} memory"
                )
            parts.append(
                Rows(
                    room=tensor.room,
                    shape=tensor.shape,
                    first=rows.first,
                    count=rows.count,
                    length=rows.length,
                )
            )
        return fed(DATA_TYPES[ref.dtype], ref.shape, ref.fill, parts)

    def _staying(self, keeper: Keeper, ref: KeptRef, taken: contextlib.ExitStack) -> StayingOutput:
        dtype = DATA_TYPES[ref.dtype]
        room = self._room(keeper, max(1, math.prod(ref.shape) * dtype.itemsize))
        taken.callback(self._give_back, keeper.memory, room)
        return StayingOutput(dtype=dtype, shape=ref.shape, room=room, shown=ref.shown)

    def _room(self, keeper: Keeper, nbytes: int) -> Room:
        """Return the smallest idle room that is large enough, or a new one instead of an idle one.

        Raises:
            OutOfMemory: there is none.
        """
        with self._changed:
            idle = self._idle.setdefault(keeper.memory, [])
            idle.sort(key=lambda room: room.nbytes)
            for at, room in enumerate(idle):
                if room.nbytes >= nbytes:
                    return idle.pop(at)
            outgrown = idle.pop() if idle else None
        if outgrown is not None:
            outgrown.close()
        return keeper.room(nbytes)

    def _give_back(self, memory: str, room: Room) -> None:
        with self._changed:
            self._idle.setdefault(memory, []).append(room)


@dataclass(slots=True)
class Shelves:
    """The shelves of an executor, by owner.

    Attributes:
        id: tells this executor from every other.
    """

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _shelves: dict[str, Shelf] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def join(self, owner: str) -> Shelf:
        """Return the owner's shelf, made with the first one who asks; pair with `leave`."""
        with self._lock:
            shelf = self._shelves.setdefault(owner, Shelf())
            shelf.holders += 1
            return shelf

    def leave(self, owner: str) -> None:
        """Give a hold of a shelf up; the last one frees what is there."""
        with self._lock:
            shelf = self._shelves[owner]
            shelf.holders -= 1
            if shelf.holders:
                return
            del self._shelves[owner]
        shelf.close()

    def figures(self) -> tuple[int, int]:
        """Return how many tensors are kept, and how many bytes there are for them."""
        with self._lock:
            shelves = list(self._shelves.values())
        return sum(s.num_tensors for s in shelves), sum(s.num_bytes for s in shelves)


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A graph's runs on its owner's shelf."""

    keeper: Keeper
    shelf: Shelf

    def run(
        self, message: Run, inputs: Mapping[str, Array], views: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Run once; see `Shelf.run`."""
        return self.shelf.run(self.keeper, message, inputs, views)


class KeptGraphs:
    """The graphs of one connection whose tensors can stay on the device.

    Args:
        shelves: the executor's.
    """

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
        self._joined: dict[str, Shelf] = {}  # by owner
        self._runs: dict[int, KeptRun] = {}  # by graph

    def open(self, message: KeepTensors, graph: Graph) -> Keeps:
        """Let a graph's runs use its owner's shelf; say how, or that they cannot.

        Raises:
            OutOfMemory: the device has no room for what the message asks for.
        """
        keeper = graph.keeper() if isinstance(graph, KeepingGraph) else None
        if keeper is None:
            return Keeps(id=message.id, memory="", granule=1)
        if message.owner not in self._joined:
            self._joined[message.owner] = self._shelves.join(message.owner)
        shelf = self._joined[message.owner]
        shelf.reserve(keeper, message.rooms)
        self._runs[message.graph] = KeptRun(keeper, shelf)
        memory = f"{keeper.memory} of {self._shelves.id}"
        return Keeps(id=message.id, memory=memory, granule=keeper.granule)

    def run_of(self, graph: int) -> KeptRun | None:
        """Return what a graph's runs are made by; None for one whose tensors do not stay."""
        return self._runs.get(graph)

    def free(self, message: FreeTensors) -> None:
        """Forget tensors."""
        run = self._runs.get(message.graph)
        if run is not None:
            run.shelf.free(message.keys)

    def close(self) -> None:
        """Leave all shelves, once no run uses those that nobody else holds."""
        for owner in self._joined:
            self._shelves.leave(owner)
