"""A thread that shows that the executor lives, and ends it when a run of it never does.

Stubs read the time of the last beat from the page that they share with the executor: a run may be
long, but a process that is stopped, or that waits for itself, beats no more (`client/watch.py`).
While no lane has anything to do it beats seldom, each time for as long as the next one takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ge_backend.executor.protocol.outstanding import Outstanding
from ge_backend.executor.server.lanes import Lanes

__all__ = ["IDLE_S", "Heartbeat"]

log = logging.getLogger(__name__)

PERIOD_S = 0.2
IDLE_S = 1.0


class Heartbeat:
    """Beats until it is closed.

    Args:
        outstanding: where stubs see it.
        lanes: whose runs have to end.
        show: lets stubs see what else there is to see; called before each beat.
        run_timeout_s: how long one may take; 0: as long as it likes.
        idle_s: between two beats while no run waits.
        on_fault: called once when one takes longer.
    """

    def __init__(
        self,
        outstanding: Outstanding,
        lanes: Lanes,
        show: Callable[[], None],
        *,
        run_timeout_s: float,
        idle_s: float = IDLE_S,
        on_fault: Callable[[], None],
    ) -> None:
        self._outstanding = outstanding
        self._lanes = lanes
        self._show = show
        self._run_timeout_s = run_timeout_s
        # A run that begins while this thread sleeps is seen before its time is over.
        self._idle_s = min(idle_s, max(PERIOD_S, run_timeout_s)) if run_timeout_s else idle_s
        self._on_fault = on_fault
        self._stop = threading.Event()
        outstanding.beat()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        reported = False
        pause_s = PERIOD_S
        while not self._stop.wait(pause_s):
            self._show()
            pause_s = PERIOD_S if len(self._lanes) else self._idle_s
            self._outstanding.beat(pause_s - PERIOD_S)
            began_ns = self._lanes.oldest_ns()
            taken_s = (time.monotonic_ns() - began_ns) / 1e9 if began_ns else 0.0
            if not reported and 0 < self._run_timeout_s < taken_s:
                reported = True
                log.critical(
                    "a run has taken %.1f s, and GE_RUN_TIMEOUT_S allows %g: its executor ends",
                    taken_s,
                    self._run_timeout_s,
                )
                self._on_fault()
