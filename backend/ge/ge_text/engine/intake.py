"""What other threads leave for the thread that steps an engine: requests and cancellations."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from ge_backend.errors import InvalidRequest, QueueFull
from ge_text.engine.request import GenerationRequest
from ge_text.engine.update import Sink

__all__ = ["Arrived", "Intake"]


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request that was checked; `max_output` is what each of its samples may have."""

    request: GenerationRequest
    sink: Sink
    at_s: float
    max_output: int


class Intake:
    """Notes in their order: requests that have come, and ids of those that are to go.

    Any thread may leave one, and waits for no step.

    Args:
        max_waiting: requests that may lie here or in the queue.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._ids: set[str] = set()
        self._notes: list[Arrived | str] = []

    def __len__(self) -> int:
        """Return how many requests are live: here, waiting or running."""
        return len(self._ids)

    def add(self, arrived: Arrived, waiting: int) -> None:
        """Leave a request; its id is taken until `forget`. `waiting`: those in the engine's queue.

        Raises:
            QueueFull: too many wait, and the request was not taken on before.
            InvalidRequest: a live request has the same id.
        """
        name = arrived.request.id
        with self._lock:
            waiting += sum(isinstance(note, Arrived) for note in self._notes)
            if waiting >= self._max_waiting and not arrived.request.again:
                raise QueueFull(
                    f"{waiting} requests wait for this model, which is as many as may "
                    "(max_waiting_requests); try again later"
                )
            if name in self._ids:
                raise InvalidRequest(f"request {name!r} is being served; take another id")
            self._ids.add(name)
            self._notes.append(arrived)

    def cancel(self, name: str) -> None:
        """Leave a cancellation; one of a request that is no longer there does nothing."""
        with self._lock:
            if name in self._ids:
                self._notes.append(name)

    def take(self) -> list[Arrived | str]:
        """Return all notes and forget them."""
        with self._lock:
            notes, self._notes = self._notes, []
            return notes

    def forget(self, name: str) -> None:
        """Note that a request has ended."""
        with self._lock:
            self._ids.discard(name)
