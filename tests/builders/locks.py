"""Locks that tell what tests wait for."""

import threading


class TellingLock:
    """A lock that sets `awaited` as soon as somebody waits for it; one who only tries does not.

    So a test need not guess how long a thread takes until it waits.
    """

    def __init__(self, awaited):
        self._lock, self._awaited = threading.Lock(), awaited

    def acquire(self, *, blocking=True):
        """Take it, or wait for it, as `threading.Lock` does."""
        taken = self._lock.acquire(blocking=False)
        if taken or not blocking:
            return taken
        self._awaited.set()
        return self._lock.acquire()

    def release(self):
        """Give it back."""
        self._lock.release()
