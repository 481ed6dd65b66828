"""The graphs that an executor holds: each source loaded once, shared by every connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ge_backend.device.base import CompiledAhead, Device, Graph, GraphSource
from ge_backend.device.workspace.pool import Pool
from ge_backend.errors import OutOfMemory, ProtocolError
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
    """One source: its graph, who holds it, and what was measured for it.

    Attributes:
        holder: its name in the workspace pool: `encoder/1/model.onnx #3`.
        costs: prepared inputs -> what was found out about them.
        scratch_bytes: the most that was measured for one run.
        compiled: the sets of input shapes that the graph was last compiled for.
        lock: held while the graph is loaded, compiled or prepared, so that it happens once. A
            thread that prepares holds it while it waits for bytes of the pool, so a thread with
            nothing to load, compile or prepare does not take it.
    """

    id: int
    source: GraphSource
    holder: str = field(init=False)
    graph: Graph | None = None
    holders: int = 0
    idle_since: float = 0.0
    costs: dict[tuple[PrepareInput, ...], Cost] = field(default_factory=dict)
    scratch_bytes: int = 0
    compiled: tuple[Mapping[str, Shape], ...] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.holder = f"{'/'.join(Path(self.source.path).parts[-3:])} #{self.id}"


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
        self._linger_s = linger_s
        self._entries: dict[GraphSource, CachedGraph] = {}
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._closed = 0  # graphs, so far
        self._next_id = 1

    def acquire(self, source: GraphSource) -> tuple[CachedGraph, Graph]:
        """Return the entry of a source and its graph, loaded; pair with `release`.

        Raises:
            ModelError, DeviceUnavailable, OutOfMemory: as `Device.load`; nothing is held then.
        """
        with self._lock:
            entry = self._entries.get(source)
            if entry is None:
                entry = CachedGraph(id=self._next_id, source=source)
                self._next_id += 1
                self._entries[source] = entry
            entry.holders += 1
        try:
            return entry, self._loaded(entry)
        except BaseException:
            self._give_up(entry)
            raise

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
        if not self._pool.size_bytes or entry.graph is None:
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
        loaded = ", ".join(entry.holder for entry in self.entries() if entry.graph is not None)
        return OutOfMemory(f"{error} (the device has {free} of {total} free; loaded: {loaded})")

    def hold(self, entry: CachedGraph) -> None:
        """Keep an entry for one run, whatever becomes of its connection; pair with `release`."""
        with self._lock:
            entry.holders += 1

    def release(self, entry: CachedGraph) -> None:
        """Give up one hold of an entry."""
        with self._lock:
            entry.holders -= 1
            entry.idle_since = time.monotonic()
            if entry.holders < 0:
                raise ProtocolError(f"graph {entry.source.path} was released once too often")

    def close_idle(self, *, now: bool = False) -> int:
        """Close the graphs that have had no holder for the linger time.

        With `now`, all that have none are closed, after waiting for a thread that closes some.

        Returns:
            How many were closed.
        """
        if not self._closing.acquire(blocking=now):
            return 0
        try:
            due = time.monotonic() - (0.0 if now else self._linger_s)
            with self._lock:
                idle = [e for e in self._entries.values() if not e.holders and e.idle_since <= due]
                for entry in idle:
                    del self._entries[entry.source]
            for entry in idle:
                with entry.lock:
                    if entry.graph is not None:
                        entry.graph.close()
                        self._pool.remove(entry.holder)
            self._closed += len(idle)
            return len(idle)
        finally:
            self._closing.release()

    def defects(self) -> list[str]:
        """Return the graphs that are loaded and are not in the pool; there should be none."""
        with self._lock:
            loaded = {entry.holder for entry in self._entries.values() if entry.graph is not None}
            strays = loaded - self._pool.figures().holders.keys()
        return [f"{len(strays)} of {len(loaded)} graphs are not in the pool"] if strays else []

    def _loaded(self, entry: CachedGraph) -> Graph:
        """Return the graph of an entry, which stays while the caller holds that."""
        if entry.graph is None:
            with entry.lock:
                if entry.graph is None:
                    entry.graph = self._load(entry)
        return entry.graph

    def _load(self, entry: CachedGraph) -> Graph:
        workspace = self._pool.workspace(entry.holder)
        try:
            return self._with_room(lambda: self._device.load(entry.source, workspace))
        except BaseException:
            self._pool.remove(entry.holder)
            raise

    def _with_room(self, action: Callable[[], _Result]) -> _Result:
        """Do it; where memory is short, close the graphs without a holder and do it once more."""
        closed = self._closed
        try:
            return action()
        except OutOfMemory as error:
            given_up = self.on_shortage()
            evicted = self.close_idle(now=True)
            if not given_up and closed == self._closed:
                raise self.explained(error) from error
            with self._lock:
                self.evictions += evicted
        try:
            return action()
        except OutOfMemory as error:
            raise self.explained(error) from error

    def _give_up(self, entry: CachedGraph) -> None:
        """Release an entry whose graph could not be loaded; the last one to do so forgets it."""
        self.release(entry)
        with self._lock:
            known = self._entries.get(entry.source) is entry  # and not one that came after it
            if known and not entry.holders and entry.graph is None:
                del self._entries[entry.source]

    def entries(self) -> list[CachedGraph]:
        """Return the entries, for a report."""
        with self._lock:
            return list(self._entries.values())
