"""The threads that run graphs: as many at once as the device has lanes, first come first served."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Protocol

__all__ = ["Job", "Lanes"]

log = logging.getLogger(__name__)


class Job(Protocol):
    """One piece of work for a lane."""

    def __call__(self, *, alone: bool) -> None:
        """Do it; `alone` when nothing else runs or waits, so it may use the whole device."""


class Lanes:
    """A fixed set of worker threads over one queue.

    Jobs handle their own errors: what one raises is a defect, which is logged and costs no lane.
    """

    def __init__(self, count: int) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, bool] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._busy = 0
        self._solos = 0  # solo jobs that run or wait for the lanes to be empty
        self._threads = [
            threading.Thread(target=self._work, name=f"lane-{index}", daemon=True)
            for index in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job, *, solo: bool = False) -> None:
        """Queue a job; a solo one begins when no other runs, and none begins until it has ended."""
        self._jobs.put((job, solo))

    def close(self) -> None:
        """Let the queued jobs finish, then end the threads."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (queued := self._jobs.get()) is not None:
            job, solo = queued
            alone = self._enter(solo=solo)
            try:
                job(alone=alone)
            except Exception:
                log.exception("a job failed in a lane, which goes on")
            finally:
                self._leave(solo=solo)
            del job, queued  # an idle lane keeps no arena mapped

    def _enter(self, *, solo: bool) -> bool:
        """Wait for this job's turn; return whether it is alone."""
        with self._changed:
            if solo:
                self._solos += 1
                self._changed.wait_for(lambda: not self._busy)
            else:
                self._changed.wait_for(lambda: not self._solos)
            self._busy += 1
            return solo or (self._busy == 1 and self._jobs.empty())

    def _leave(self, *, solo: bool) -> None:
        with self._changed:
            self._busy -= 1
            self._solos -= solo
            if self._solos or solo:
                self._changed.notify_all()
