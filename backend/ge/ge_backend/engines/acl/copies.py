"""A model loaded several times, so that several runs of it are in flight.

ACL runs a loaded model once at a time. Its weights are shared by all copies; work memory, inputs
and outputs are each one's own.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Mapping, Sequence

from ge_backend.device.base import Graph
from ge_backend.device.resident.buffers import Bound, BufferMemory, bound_graph, memory_of
from ge_backend.errors import OutOfMemory
from ge_backend.tensors import Array, Shape

__all__ = ["Copies", "loaded_copies"]

log = logging.getLogger(__name__)


def loaded_copies(load: Callable[[], Graph], count: int) -> Graph:
    """Return a graph with as many copies as asked for, or as there is memory for.

    Raises:
        ModelError, OutOfMemory, Unsupported: as `load`, which loads one of them.
    """
    copies = [load()]
    try:
        while len(copies) < count:
            copies.append(load())
    except OutOfMemory as error:
        log.warning("there is memory for %d of %d runs at once: %s", len(copies), count, error)
    except BaseException:
        for copy in copies:
            copy.close()
        raise
    return copies[0] if len(copies) == 1 else Copies(copies)


class Copies(Graph):
    """Equal graphs as one; a run takes one that is idle, or waits for it. See `Graph`."""

    def __init__(self, copies: Sequence[Graph]) -> None:
        first = copies[0]
        self.signature = first.signature
        self.shape_policy = first.shape_policy
        self._copies = copies
        # The one that ran last runs next: its memory is more likely to be near.
        self._idle: queue.LifoQueue[Graph] = queue.LifoQueue()
        for copy in copies:
            self._idle.put(copy)

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Make every copy ready for these shapes."""
        for copy in self._copies:
            copy.prepare(inputs)

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the work memory of one run."""
        return self._copies[0].workspace_bytes(shapes)

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once, on whichever copy is idle; see `Graph.run`."""
        copy = self._idle.get()
        try:
            return copy.run(inputs, outputs, exclusive=exclusive)
        finally:
            self._idle.put(copy)

    def device_memory(self) -> BufferMemory | None:
        """Return that of one of them, which all reach; see `BoundGraph`."""
        return memory_of(self._copies[0])

    def run_bound(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], bound: Bound
    ) -> dict[str, Array]:
        """Run once, on whichever copy is idle; see `BoundGraph`."""
        copy = self._idle.get()
        try:
            return bound_graph(copy).run_bound(inputs, outputs, bound)
        finally:
            self._idle.put(copy)

    def close(self) -> None:
        """Unload all copies, each once its run has ended."""
        for copy in self._copies:
            copy.close()
