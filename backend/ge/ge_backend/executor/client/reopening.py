"""How work goes on after the executor that had it has died: what is opened again, and repeated."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ge_backend.errors import DeviceUnavailable, ExecutorLost, GeError, unforeseen

__all__ = ["GRAPHS", "QUESTIONS", "TEXTS", "Reopening", "Replay"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """How often what executors die over is tried again.

    Attributes:
        beside_others: how many may die over a run or text before it is tried with no other.
        deaths: how many may die over it at all, and in a row over an opening or a question before
            that has failed: those may be the doing of other stubs.
        first_s, most_s: seconds between two openings that have failed; each pause is twice the one
            before.
    """

    beside_others: int
    deaths: int
    first_s: float = 1.0
    most_s: float = 30.0


GRAPHS = Replay(beside_others=0, deaths=20)
# Texts on trial are served one at a time, so the first death, which may have another cause, puts
# none on trial.
TEXTS = Replay(beside_others=1, deaths=8)
# What warm-up and learning ask of an executor: a second death over it probably is its own.
QUESTIONS = Replay(beside_others=0, deaths=2)


class Reopening:
    """Opens again what an executor's death has closed, in a thread, until that works.

    Args:
        what: for the log.
        name: of the thread.
        replay: how often it is tried, with which pauses.
        reopen: raises ExecutorLost where an executor has died over it, and any other error where it
            cannot be had.
        failed: called with the reason whenever an attempt has failed.
        ended: called last, whether it is open again or was stopped.

    Attributes:
        stopped: no other attempt is made.
    """

    def __init__(
        self,
        what: str,
        name: str,
        replay: Replay,
        *,
        reopen: Callable[[], None],
        failed: Callable[[GeError], None],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._what, self._name, self._replay = what, name, replay
        self._reopen, self._failed, self._ended = reopen, failed, ended
        self.stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin, when it was found closed.

        Raises:
            RuntimeError: no thread can be started.
        """
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        self._thread = thread

    def stop(self) -> None:
        """Make no other attempt."""
        self.stopped.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the attempt that is being made when it is stopped."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        pause_s = self._replay.first_s
        while (failure := self._attempt()) is not None and not self.stopped.is_set():
            log.warning("%s is lost and tried again in %g s: %s", self._what, pause_s, failure)
            self._failed(failure)
            if self.stopped.wait(pause_s):
                break
            pause_s = min(2 * pause_s, self._replay.most_s)
        self._ended()

    def _attempt(self) -> GeError | None:
        """Open it; return why that did not work."""
        lost: GeError | None = None
        try:
            for _ in range(self._replay.deaths):
                if self.stopped.is_set():
                    return None
                try:
                    self._reopen()
                except ExecutorLost as error:
                    log.warning("an executor has died over %s: %s", self._what, error)
                    lost = error
                else:
                    return None
        except GeError as error:
            return error
        except Exception as error:
            log.exception("%s could not be opened again in an unforeseen way", self._what)
            return unforeseen(error, DeviceUnavailable)
        return lost
