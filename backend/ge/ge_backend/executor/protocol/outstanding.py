"""How much work and scratch an executor holds, in a page of memory that its stubs have mapped too.

A stub with several devices sends its next runs to the one that will be done soonest. What other
stubs have sent there counts, and an answer to an earlier question would be old: so every stub reads
the executor's own sum, which costs less than a microsecond and no message. Beside it stands what
the stubs publish of the executor's workspace pool, its memory and the device's health, and when the
executor was last alive.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from dataclasses import astuple, dataclass, fields

from ge_backend.device.health import Health
from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol.descriptors import created, mapped

__all__ = ["Outstanding", "OutstandingView", "PoolSample"]

NBYTES = mmap.PAGESIZE
# What a cell holds; a sum of estimates may be more, when a stub sends nonsense.
MAX_NS = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSample:
    """A device's workspace pool at some moment; see `PoolFigures`, and `Report` for `evictions`."""

    size_bytes: int = 0
    placed_bytes: int = 0
    leased_bytes: int = 0
    peak_bytes: int = 0
    evictions: int = 0


POOL_CELLS = slice(1, 1 + len(fields(PoolSample)))
BEAT_CELL = POOL_CELLS.stop
HEALTH_CELLS = slice(BEAT_CELL + 1, BEAT_CELL + 1 + len(fields(Health)))
MEMORY_CELL = HEALTH_CELLS.stop


class Outstanding:
    """The executor's side: the sum of the estimates of all runs that wait or run.

    Attributes:
        descriptor: of the page; `close` closes it, so stubs are sent a duplicate.

    Raises:
        OutOfMemory: the system has no page left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total_ns = 0
        memory, self.descriptor = created("ge-outstanding", NBYTES)
        # Aligned 8-byte stores, of which no reader sees half.
        self._cells = memoryview(memory).cast("q")
        self.show_health(Health())

    def change(self, by_ns: int) -> None:
        """Let the stubs see `by_ns` more work as a run comes, or less once it has ended."""
        with self._lock:
            self._total_ns += by_ns
            self._cells[0] = min(self._total_ns, MAX_NS)

    def show(self, sample: PoolSample) -> None:
        """Let the stubs see the pool as it is."""
        for index, value in enumerate(astuple(sample), start=POOL_CELLS.start):
            self._cells[index] = value

    def beat(self, holds_s: float = 0.0) -> None:
        """Let the stubs see that this process is alive; they need not look before that is over."""
        self._cells[BEAT_CELL] = time.monotonic_ns() + int(holds_s * 1e9)

    def show_health(self, health: Health) -> None:
        """Let the stubs see how the device is."""
        for index, value in enumerate(astuple(health), start=HEALTH_CELLS.start):
            self._cells[index] = value

    def show_memory(self, nbytes: int) -> None:
        """Let the stubs see how much memory this process has for itself."""
        self._cells[MEMORY_CELL] = nbytes

    def close(self) -> None:
        """Close the descriptor; pages mapped elsewhere stay what they are."""
        os.close(self.descriptor)


class OutstandingView:
    """The stub's side.

    Args:
        descriptor: of the executor's page; stays the caller's.

    Raises:
        OutOfMemory: the system refuses the mapping.
        ProtocolError: it is no such page.
    """

    def __init__(self, descriptor: int) -> None:
        if os.fstat(descriptor).st_size < NBYTES:
            raise ProtocolError("the executor sent no page with its outstanding work")
        self._cells = memoryview(mapped(descriptor, NBYTES, mmap.ACCESS_READ)).cast("q")

    @property
    def ns(self) -> int:
        """The estimate at this moment, in nanoseconds of one run after another."""
        return self._cells[0]

    @property
    def beat_ns(self) -> int:
        """When the executor was last alive, CLOCK_MONOTONIC; idle, until when it need not beat."""
        return self._cells[BEAT_CELL]

    @property
    def memory_bytes(self) -> int:
        """Bytes that the executor had for itself a second ago; 0 where the system does not tell."""
        return self._cells[MEMORY_CELL]

    @property
    def pool(self) -> PoolSample:
        """The executor's workspace pool, a fraction of a second ago."""
        names = (field.name for field in fields(PoolSample))
        return PoolSample(**dict(zip(names, self._cells[POOL_CELLS].tolist(), strict=True)))

    @property
    def health(self) -> Health:
        """The device, some seconds ago."""
        names = (field.name for field in fields(Health))
        return Health(**dict(zip(names, self._cells[HEALTH_CELLS].tolist(), strict=True)))
