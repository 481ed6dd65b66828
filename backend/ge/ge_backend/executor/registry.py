"""The graphs that an executor holds: each source loaded once, shared by every connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ge_backend.device.base import Device, Graph, GraphSource
from ge_backend.errors import ProtocolError
from ge_backend.executor.messages import PrepareInput
from ge_backend.tensors import Shape

__all__ = ["Cost", "Entry", "Registry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One set of input shapes: median nanoseconds of one run, 0 if not measured; scratch bytes."""

    run_ns: int
    workspace_bytes: int


@dataclass(slots=True)
class Entry:
    """One source: its graph, who holds it, and what was measured for it.

    Attributes:
        costs: prepared inputs -> what was found out about them.
        compiled: the sets of input shapes that the graph was last compiled for.
        lock: held while the graph is loaded, compiled or prepared, so that it happens once.
    """

    id: int
    source: GraphSource
    graph: Graph | None = None
    holders: int = 0
    idle_since: float = 0.0
    runs: int = 0
    costs: dict[tuple[PrepareInput, ...], Cost] = field(default_factory=dict)
    compiled: tuple[Mapping[str, Shape], ...] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)


class Registry:
    """Loads a source for its first holder and closes it some time after its last one left.

    The delay lets `auto_complete_config`, which runs in a process of its own, read a signature
    and leave, and the instance that comes next find the graph still loaded.
    """

    def __init__(self, device: Device, linger_s: float) -> None:
        self._device = device
        self._linger_s = linger_s
        self._entries: dict[GraphSource, Entry] = {}
        self._lock = threading.Lock()
        self._next_id = 1

    def acquire(self, source: GraphSource) -> tuple[Entry, Graph]:
        """Return the entry of a source and its graph, loaded; pair with `release`.

        Raises:
            ModelError, DeviceUnavailable, OutOfMemory: as `Device.load`; nothing is held then.
        """
        with self._lock:
            entry = self._entries.get(source)
            if entry is None:
                entry = Entry(id=self._next_id, source=source)
                self._next_id += 1
                self._entries[source] = entry
            entry.holders += 1
        try:
            with entry.lock:
                if entry.graph is None:
                    entry.graph = self._device.load(source)
                return entry, entry.graph
        except BaseException:
            self._give_up(entry)
            raise

    def compile(self, entry: Entry, shapes: Sequence[Mapping[str, Shape]]) -> None:
        """Compile a loaded graph for these shapes and those of before, unless that was done.

        Raises:
            ModelError, OutOfMemory: as `Graph.compile`.
        """
        with entry.lock:
            fresh = tuple(shape for shape in shapes if shape not in entry.compiled)
            if fresh and entry.graph is not None:
                entry.graph.compile(entry.compiled + fresh)
                entry.compiled += fresh

    def hold(self, entry: Entry) -> None:
        """Keep an entry for one run, whatever becomes of its connection; pair with `release`."""
        with self._lock:
            entry.holders += 1

    def release(self, entry: Entry) -> None:
        """Give up one hold of an entry."""
        with self._lock:
            entry.holders -= 1
            entry.idle_since = time.monotonic()
            if entry.holders < 0:
                raise ProtocolError(f"graph {entry.source.path} was released once too often")

    def count_run(self, entry: Entry) -> None:
        """Count a run that has ended, for the report."""
        with self._lock:
            entry.runs += 1

    def close_idle(self, *, now: bool = False) -> None:
        """Close the graphs that nobody has held for the linger time, or all of those at once."""
        due = time.monotonic() - (0.0 if now else self._linger_s)
        with self._lock:
            idle = [e for e in self._entries.values() if not e.holders and e.idle_since <= due]
            for entry in idle:
                del self._entries[entry.source]
        for entry in idle:
            with entry.lock:
                if entry.graph is not None:
                    entry.graph.close()

    def _give_up(self, entry: Entry) -> None:
        """Release an entry whose graph could not be loaded; the last one to do so forgets it."""
        self.release(entry)
        with self._lock:
            if not entry.holders and entry.graph is None:
                self._entries.pop(entry.source, None)

    def entries(self) -> list[Entry]:
        """Return the entries, for a report."""
        with self._lock:
            return list(self._entries.values())
