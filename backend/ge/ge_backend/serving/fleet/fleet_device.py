"""One device of a model instance: its session, and the way back when the device is lost."""

from __future__ import annotations

import logging
import threading

from ge_backend.errors import GeError
from ge_backend.executor.client.reopening import Reopening, Replay
from ge_backend.executor.client.session import Session

__all__ = ["FleetDevice"]

log = logging.getLogger(__name__)

# For an attempt to reopen that is being made when the device is closed: most end within it, and
# leave the executor that they started. One that loads a large model takes minutes, for which
# unloading a model and stopping the server are not to wait.
LEAVE_S = 3.0


class FleetDevice:
    """One device of a fleet.

    While it is up, its session belongs to the thread that runs batches. From `lose` on it belongs
    to a thread that reopens it, again and again until that works, and then it is up again.

    Args:
        name: for logs and metrics.
        session: becomes the device's.
        changed: notified whenever the device is up or an attempt has failed; shared by a fleet.
        replay: how often reopening is tried, with which pauses.

    Attributes:
        up: whether runs may be submitted.
        failure: why the device could not be reopened; None while it is up, or was not tried yet.
    """

    def __init__(
        self, name: str, session: Session, changed: threading.Condition, replay: Replay
    ) -> None:
        self.name = name
        self.session = session
        self._changed = changed
        self.up = True
        self.failure: GeError | None = None
        self._reopening = Reopening(
            f"device {name}",
            f"reopen {name}",
            replay,
            reopen=session.reopen,
            failed=self._fail,
            ended=self._end,
        )

    def lose(self, error: GeError) -> None:
        """Note that the executor is gone, and have it reopened in the background."""
        self.session.lose(error)
        with self._changed:
            if self.up:
                self._reopening.begin()
                self.up = False

    def close(self) -> None:
        """Leave the executor, at once or as soon as an attempt to reopen it has ended.

        That is waited for, for seconds; whatever it takes, no other attempt is made.
        """
        with self._changed:
            self._reopening.stop()
            if self.up:
                self.session.close()
        self._reopening.join(LEAVE_S)

    def _fail(self, error: GeError) -> None:
        with self._changed:
            self.failure = error
            self._changed.notify_all()

    def _end(self) -> None:
        """Be up again; a device that was closed meanwhile leaves what there is."""
        with self._changed:
            if self._reopening.stopped.is_set():
                self.session.close()
            elif self.failure is not None:
                log.warning("device %s is back", self.name)
            self.up, self.failure = True, None
            self._changed.notify_all()
