"""The graphs that an executor holds: each source loaded once, shared by every connection."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ge_backend.device.base import CompiledAhead, Device, Graph, GraphSource
from ge_backend.device.shared import Shared
from ge_backend.device.workspace.pool import Pool
from ge_backend.errors import OutOfMemory
from ge_backend.executor.protocol.messages import PrepareInput
from ge_backend.model.config.sizes import format_bytes
from ge_backend.tensors import Shape

__all__ = ["CachedGraph", "Cost", "GraphCache"]

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One set of input shapes: nanoseconds of its shortest run, 0: not measured; scratch bytes.

    And the shapes of the outputs that it had.
    """

    run_ns: int
    workspace_bytes: int
    outputs: dict[str, Shape]


@dataclass(slots=True)
class CachedGraph:
    """One source: its graph, and what was measured for it.

    Attributes:
        key: tells its source from others; a string, which knows its hash: each run asks for it.
        holder: its name in the workspace pool: `encoder/1/model.onnx #3`.
        costs: prepared inputs -> what was found out about them.
        scratch_bytes: the most that was measured for one run.
        compiled: the sets of input shapes that the graph was last compiled for.
        lock: held while the graph is compiled or prepared, so that it happens once. A thread that
            prepares holds it while it waits for bytes of the pool, so a thread with nothing to
            compile or prepare does not take it.
    """

    id: int
    source: GraphSource
    key: str
    graph: Graph
    holder: str
    costs: dict[tuple[PrepareInput, ...], Cost] = field(default_factory=dict)
    scratch_bytes: int = 0
    compiled: tuple[Mapping[str, Shape], ...] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)


class GraphCache:
    """Loads a source for its first holder and closes it some time after its last one left.

    The delay lets `auto_complete_config`, which runs in a process of its own, read a signature
    and leave, and the instance that comes next find the graph still loaded.

    Args:
        device: loads the graphs.
        pool: where they have their scratch memory.
        linger_s: how long a graph without a holder stays.

    Attributes:
        evictions: graphs without a holder that were closed before their time, to make room.
        on_shortage: called first where memory is short: has others give up what they hold and do
            not use, and returns how many did.
    """

    def __init__(self, device: Device, pool: Pool, linger_s: float) -> None:
        self.evictions = 0
        self.on_shortage: Callable[[], int] = lambda: 0
        self._device = device
        self._pool = pool
        self._shared: Shared[str, CachedGraph] = Shared(linger_s, self._close)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()

    @property
    def changes(self) -> int:
        """How often a source has come or gone so far."""
        return self._shared.changes

    def acquire(self, source: GraphSource) -> CachedGraph:
        """Return the entry of a source, with its graph loaded; pair with `release`.

        Raises:
            ModelError, DeviceUnavailable, OutOfMemory: as `Device.load`; nothing is held then.
        """
        key = repr(source)
        return self._shared.acquire(key, lambda: self._load(source, key))

    def compile(self, entry: CachedGraph, shapes: Sequence[Mapping[str, Shape]]) -> None:
        """Compile a graph, if it is compiled ahead, for these shapes and those of before.

        Raises:
            ModelError, OutOfMemory: as `CompiledAhead.compile`.
        """
        if all(shape in entry.compiled for shape in shapes):
            return
        with entry.lock:
            fresh = tuple(shape for shape in shapes if shape not in entry.compiled)
            graph = entry.graph
            if fresh and isinstance(graph, CompiledAhead):
                with self._pool.changing(entry.holder):
                    self._with_room(lambda: graph.compile(entry.compiled + fresh))
                entry.compiled += fresh

    def run_bytes(self, entry: CachedGraph, shapes: Mapping[str, Shape]) -> int:
        """Return the bytes of the pool that a run takes; 0: those of the graph's place.

        Raises:
            OutOfMemory: more than the pool has.
        """
        if not self._pool.size_bytes:
            return 0
        nbytes = entry.graph.workspace_bytes(shapes)
        self.place(entry, nbytes)
        return nbytes

    def measuring_bytes(self, entry: CachedGraph) -> int:
        """Return the bytes of the pool that a measurement takes: all, until something is known."""
        return 0 if entry.scratch_bytes else self._pool.size_bytes

    def place(self, entry: CachedGraph, nbytes: int) -> None:
        """See that a graph's place in the pool is as large as what was measured for it.

        Raises:
            OutOfMemory: more than the pool has.
        """
        if nbytes > entry.scratch_bytes:
            self._pool.place(entry.holder, nbytes, bound=False)
            entry.scratch_bytes = nbytes

    def explained(self, error: OutOfMemory) -> OutOfMemory:
        """Return the error with what the device has left, and who has the rest."""
        memory = self._device.memory()
        free, total = format_bytes(memory.free_bytes), format_bytes(memory.total_bytes)
        loaded = ", ".join(entry.holder for entry in self.entries())
        return OutOfMemory(f"{error} (the device has {free} of {total} free; loaded: {loaded})")

    def hold(self, entry: CachedGraph) -> None:
        """Keep an entry for one run, whatever becomes of its connection; pair with `release`."""
        self._shared.hold(entry.key)

    def release(self, entry: CachedGraph) -> None:
        """Give up one hold of an entry."""
        self._shared.release(entry.key)

    def close_idle(self, *, now: bool = False) -> int:
        """Close the graphs that have had no holder for the linger time; see `Shared.close_idle`."""
        return self._shared.close_idle(now=now)

    def entries(self) -> list[CachedGraph]:
        """Return what is loaded, for a report."""
        return self._shared.values()

    def holders(self) -> list[int]:
        """Return how many hold each graph, loaded or being loaded."""
        return list(self._shared.holders().values())

    def defects(self) -> list[str]:
        """Return the graphs that are loaded and are not in the pool; there should be none."""
        loaded = {entry.holder for entry in self.entries()}
        placed = self._pool.figures().holders.keys()
        loaded &= {entry.holder for entry in self.entries()}  # and have not been closed meanwhile
        strays = loaded - placed
        return [f"{len(strays)} of {len(loaded)} graphs are not in the pool"] if strays else []

    def _load(self, source: GraphSource, key: str) -> CachedGraph:
        number = next(self._ids)
        holder = f"{'/'.join(Path(source.path).parts[-3:])} #{number}"
        workspace = self._pool.workspace(holder)
        try:
            graph = self._with_room(lambda: self._device.load(source, workspace))
        except BaseException:
            self._pool.remove(holder)
            raise
        return CachedGraph(id=number, source=source, key=key, graph=graph, holder=holder)

    def _close(self, entry: CachedGraph) -> None:
        entry.graph.close()
        self._pool.remove(entry.holder)

    def _with_room(self, action: Callable[[], _Result]) -> _Result:
        """Do it; where memory is short, close the graphs without a holder and do it once more."""
        closed = self._shared.closed
        try:
            return action()
        except OutOfMemory as error:
            given_up = self.on_shortage()
            evicted = self.close_idle(now=True)
            if not given_up and closed == self._shared.closed:
                raise self.explained(error) from error
            with self._lock:
                self.evictions += evicted
        try:
            return action()
        except OutOfMemory as error:
            raise self.explained(error) from error
