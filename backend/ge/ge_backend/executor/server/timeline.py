"""The last runs of an executor's lanes: always kept, in a bounded list, and sent on request.

Keeping is one tuple and one append per run, so there is nothing to switch on: it can still be asked
afterwards why the server was slow.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from typing import NamedTuple

from ge_backend.executor.protocol.messages import History, PastRun
from ge_backend.executor.server.queue import Grant
from ge_backend.tensors import Shape

__all__ = ["RunLabel", "Timeline"]

# At 400 runs per second the last ten seconds.
KEPT_RUNS = 4096
# The most that always fit into one message, however long the models' names are.
RUNS_PER_MESSAGE = 100


class RunLabel(NamedTuple):
    """What a run is called; see `messages.PastRun`. No dataclass: one is made for every run."""

    model: str
    bucket: Shape = ()
    real_rows: int = 0


class Timeline:
    """The last runs of all lanes, in the order of their ends."""

    def __init__(self, kept_runs: int = KEPT_RUNS) -> None:
        self._past: deque[tuple[int, RunLabel, Grant, int, int, str]] = deque(maxlen=kept_runs)
        self._ended = 0
        self._lock = threading.Lock()

    def add(self, label: RunLabel, grant: Grant, started_ns: int, error: str = "") -> None:
        """Note a run that has just ended; the rest as in `PastRun`."""
        ended_ns = time.monotonic_ns()
        with self._lock:
            self._ended += 1
            self._past.append((self._ended, label, grant, started_ns, ended_ns, error))

    def history(self, request_id: int, after: int) -> History:
        """Return the first runs that ended after the one with the number `after`."""
        with self._lock:
            first = self._past[0][0] if self._past else self._ended + 1
            skipped = max(0, after + 1 - first)
            found = list(itertools.islice(self._past, skipped, skipped + RUNS_PER_MESSAGE))
            return History(
                id=request_id,
                runs=tuple(_past_run(*entry) for entry in found),
                missed=max(0, first - 1 - after),
                last=self._ended,
            )


def _past_run(
    number: int, label: RunLabel, grant: Grant, started_ns: int, ended_ns: int, error: str
) -> PastRun:
    return PastRun(
        number=number,
        model=label.model,
        bucket=label.bucket,
        real_rows=label.real_rows,
        lane=grant.lane,
        came_ns=grant.came_ns,
        started_ns=started_ns,
        ended_ns=ended_ns,
        held_up_ns=grant.held_up_ns,
        error=error,
    )
