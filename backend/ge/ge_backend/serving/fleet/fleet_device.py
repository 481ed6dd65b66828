"""One device of a model instance: its session, and the way back when the device is lost."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from ge_backend.errors import DeviceUnavailable, ExecutorLost, GeError, unforeseen
from ge_backend.executor.client.session import Session

__all__ = ["FleetDevice", "Pauses"]

log = logging.getLogger(__name__)

# How many executors may die over a reopening before the device counts as lost: other stubs' runs
# may have killed them.
PATIENCE = 20
# For an attempt to reopen that is being made when the device is closed: most end within it, and
# leave the executor that they started. One that loads a large model takes minutes, for which
# unloading a model and stopping the server are not to wait.
LEAVE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Seconds between two attempts to reopen a device: each is twice the one before."""

    first_s: float = 1.0
    most_s: float = 30.0


class FleetDevice:
    """One device of a fleet.

    While it is up, its session belongs to the thread that runs batches. From `lose` on it belongs
    to a thread that reopens it, again and again until that works, and then it is up again.

    Args:
        name: for logs and metrics.
        session: becomes the device's.
        changed: notified whenever the device is up or an attempt has failed; shared by a fleet.

    Attributes:
        up: whether runs may be submitted.
        failure: why the device could not be reopened; None while it is up, or was not tried yet.
    """

    def __init__(
        self, name: str, session: Session, changed: threading.Condition, pauses: Pauses
    ) -> None:
        self.name = name
        self.session = session
        self._changed = changed
        self._pauses = pauses
        self.up = True
        self.failure: GeError | None = None
        self._stop = threading.Event()
        self._reopening: threading.Thread | None = None

    def lose(self, error: GeError) -> None:
        """Note that the executor is gone, and have it reopened in the background."""
        self.session.lose(error)
        with self._changed:
            if self.up:
                name = f"reopen {self.name}"
                reopening = threading.Thread(target=self._reopen, name=name, daemon=True)
                reopening.start()
                self.up, self._reopening = False, reopening

    def close(self) -> None:
        """Leave the executor, at once or as soon as an attempt to reopen it has ended.

        That is waited for, for seconds; whatever it takes, no other attempt is made.
        """
        with self._changed:
            self._stop.set()
            if self.up:
                self.session.close()
            reopening = self._reopening
        if reopening is not None:
            reopening.join(LEAVE_S)

    def _reopen(self) -> None:
        pause_s = self._pauses.first_s
        while (failure := self._attempt()) is not None and not self._stop.is_set():
            log.warning(
                "device %s is lost and tried again in %g s: %s", self.name, pause_s, failure
            )
            with self._changed:
                self.failure = failure
                self._changed.notify_all()
            if self._stop.wait(pause_s):
                break
            pause_s = min(2 * pause_s, self._pauses.most_s)
        with self._changed:
            if self._stop.is_set():
                self.session.close()
            elif self.failure is not None:
                log.warning("device %s is back", self.name)
            self.up, self.failure = True, None
            self._changed.notify_all()

    def _attempt(self) -> GeError | None:
        """Reopen the session; return why that did not work. A closed device's is left alone."""
        try:
            for _ in range(PATIENCE):
                if self._stop.is_set():
                    return None
                try:
                    self.session.reopen()
                except ExecutorLost as error:
                    lost: GeError = error
                else:
                    return None
        except GeError as error:
            return error
        except Exception as error:
            log.exception("device %s could not be reopened in an unforeseen way", self.name)
            return unforeseen(error, DeviceUnavailable)
        return lost
