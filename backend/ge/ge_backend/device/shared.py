"""What several share: made for the first holder, closed some time after the last one has gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ge_backend.errors import ProtocolError

__all__ = ["Shared"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(slots=True)
class _Slot(Generic[_Value]):
    """A value, None until it is made, and how many hold it; `lock` is held while it is made."""

    value: _Value | None = None
    holders: int = 0
    idle_since: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Shared(Generic[_Key, _Value]):
    """Values that are counted by their holders. Safe from several threads.

    A value is made by the first that acquires its key; others wait for it, and for no other value.
    Without a holder it stays for the linger time, in case one comes again.

    Args:
        linger_s: how long that is.
        close: gives a value back; called without a lock that `acquire` takes.

    Attributes:
        closed: how many values were closed so far.
        changes: how often a key has come or gone so far.
    """

    def __init__(self, linger_s: float, close: Callable[[_Value], None]) -> None:
        self.closed = 0
        self.changes = 0
        self._linger_s = linger_s
        self._close = close
        self._slots: dict[_Key, _Slot[_Value]] = {}
        self._lock = threading.Lock()
        self._closing = threading.Lock()  # one thread closes at a time

    def __len__(self) -> int:
        """Return how many there are, with those that are being made."""
        with self._lock:
            return len(self._slots)

    def values(self) -> list[_Value]:
        """Return those that are made, in the order in which their keys came."""
        with self._lock:
            return [slot.value for slot in self._slots.values() if slot.value is not None]

    def holders(self) -> dict[_Key, int]:
        """Return how many hold each key."""
        with self._lock:
            return {key: slot.holders for key, slot in self._slots.items()}

    def acquire(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """Return the value of a key, made if there is none yet; pair with `release`.

        Raises:
            Exception: what `make` raises; nothing is held then, and each that waited tries itself.
        """
        with self._lock:
            if key not in self._slots:
                self._slots[key] = _Slot()
                self.changes += 1
            slot = self._slots[key]
            slot.holders += 1
        try:
            with slot.lock:
                if slot.value is None:
                    slot.value = make()
                return slot.value
        except BaseException:
            self.release(key)
            raise

    def hold(self, key: _Key) -> None:
        """Hold a key once more that is held already; pair with `release`."""
        with self._lock:
            self._slots[key].holders += 1

    def release(self, key: _Key) -> None:
        """Give up one hold; a value that could not be made is forgotten with its last one.

        Raises:
            ProtocolError: it is not held.
        """
        with self._lock:
            slot = self._slots.get(key)
            if slot is None or not slot.holders:
                raise ProtocolError(f"{key} was released once too often")
            slot.holders -= 1
            slot.idle_since = time.monotonic()
            if not slot.holders and slot.value is None:
                self._forget(key)

    def close_idle(self, *, now: bool = False) -> int:
        """Close the values that have had no holder for the linger time.

        With `now`, all that have none are closed, after waiting for a thread that closes some.

        Returns:
            How many were closed.
        """
        if not self._closing.acquire(blocking=now):
            return 0
        try:
            idle = self._take_idle(0.0 if now else self._linger_s)
            for value in idle:
                self._close(value)
            self.closed += len(idle)
            return len(idle)
        finally:
            self._closing.release()

    def _take_idle(self, linger_s: float) -> list[_Value]:
        due = time.monotonic() - linger_s
        with self._lock:
            idle = {
                key: slot.value
                for key, slot in self._slots.items()
                if slot.value is not None and not slot.holders and slot.idle_since <= due
            }
            for key in idle:
                self._forget(key)
        return list(idle.values())

    def _forget(self, key: _Key) -> None:
        del self._slots[key]
        self.changes += 1
