"""Something better than what there is, which takes long to make: runs do not wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ge_backend.errors import GeError

__all__ = ["Background"]

log = logging.getLogger(__name__)

_Value = TypeVar("_Value")


class Background(Generic[_Value]):
    """A value that is made once, in a thread of its own. A process does not end before it.

    Args:
        make: returns the value; a `GeError` is logged, and there is none then, as where no thread
            can be started.
        name: the thread's.
        without: what is so without the value, for the log.

    Attributes:
        value: None until it is made, and once this is closed.
    """

    def __init__(self, make: Callable[[], _Value] | None, name: str, without: str) -> None:
        self.value: _Value | None = None
        self._make, self._name, self._without = make, name, without
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Make it, unless that was begun before, or this is closed."""
        if self._make is None:
            return
        with self._lock:
            if self._make is None:
                return
            thread = threading.Thread(target=self._run, args=(self._make,), name=self._name)
            self._make = None
            try:
                thread.start()
            except RuntimeError as error:  # a run asks for it, and does without
                log.warning("%s: %s", self._without, error)
            else:
                self._thread = thread

    def wait(self) -> None:
        """Wait for it, if it was begun."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Wait for it, if it was begun, and keep it no longer."""
        with self._lock:
            self._make = None
        self.wait()
        self.value = None

    def _run(self, make: Callable[[], _Value]) -> None:
        try:
            self.value = make()
        except GeError as error:
            log.warning("%s: %s", self._without, error)
