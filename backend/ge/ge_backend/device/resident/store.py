"""One user's device buffers: lent, used again, freed when the last run that uses them is over."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from ge_backend.device.resident.buffers import BufferMemory, DeviceBuffer
from ge_backend.errors import GraphFailed

__all__ = ["BufferStore"]


class BufferStore:
    """Buffers of one device memory. Safe from several threads.

    Attributes:
        memory: where they come from.
    """

    def __init__(self, memory: BufferMemory) -> None:
        self.memory = memory
        self._all: list[DeviceBuffer] = []
        self._idle: list[DeviceBuffer] = []
        self._users = 0
        self._closed = False
        self._changed = threading.Condition()

    @property
    def num_bytes(self) -> int:
        """The bytes of all buffers, lent or not."""
        with self._changed:
            return sum(buffer.nbytes for buffer in self._all)

    def reserve(self, sizes: Sequence[int], what: str) -> None:
        """Set buffers of these bytes aside, so that none of them is allocated later.

        Sizes and `what` are as in `BufferMemory.allocate`.

        Raises:
            OutOfMemory: the device has not that much left; then none is.
        """
        with contextlib.ExitStack() as taken:
            found = []
            for nbytes in sizes:
                found.append(self.memory.allocate(nbytes, what))
                taken.callback(found[-1].close)
            taken.pop_all()
        with self._changed:
            self._all += found
            self._idle += found

    def take(self, nbytes: int, what: str) -> DeviceBuffer:
        """Return the smallest idle buffer that is large enough, or a new one for an idle one.

        `nbytes` and `what` are as in `BufferMemory.allocate`.

        Raises:
            OutOfMemory: the device has not that much left.
        """
        with self._changed:
            self._idle.sort(key=lambda buffer: buffer.nbytes)
            for at, buffer in enumerate(self._idle):
                if buffer.nbytes >= nbytes:
                    return self._idle.pop(at)
            outgrown = self._idle.pop() if self._idle else None
            if outgrown is not None:
                self._all.remove(outgrown)
        if outgrown is not None:
            outgrown.close()
        taken = self.memory.allocate(nbytes, what)
        with self._changed:
            self._all.append(taken)
        return taken

    def give_back(self, buffer: DeviceBuffer) -> None:
        """Let others have a buffer; runs that use it come before those that will."""
        with self._changed:
            self._idle.append(buffer)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep all buffers from being freed.

        Raises:
            GraphFailed: they are freed already.
        """
        with self._changed:
            if self._closed:
                raise GraphFailed("its device buffers were given back before this run")
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Free all buffers, once no run uses them; a run that comes later is refused."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._users)
            freed, self._all, self._idle = self._all, [], []
        for buffer in freed:
            buffer.close()
