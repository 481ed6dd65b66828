"""What a service has to say to one client, joined while the client is slow to take it."""

from __future__ import annotations

import threading

from ge_backend.executor.protocol.generation_messages import (
    Delta,
    News,
    Refused,
    Seen,
    joined,
    parts_of,
)
from ge_backend.executor.server.services import Client

__all__ = ["Outbox"]


class Outbox:
    """A thread that posts; whoever puts something here waits for nobody.

    Args:
        client: gets it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._deltas: dict[tuple[int, int], list[Delta]] = {}
        self._others: list[Refused | Seen] = []
        self._closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._post, name="outbox", daemon=True).start()

    def put(self, delta: Delta) -> None:
        """Say what is new of a sample."""
        with self._changed:
            self._deltas.setdefault((delta.number, delta.sample), []).append(delta)
            self._changed.notify()

    def say(self, message: Refused | Seen) -> None:
        """Say something else, after all deltas that were put before."""
        with self._changed:
            self._others.append(message)
            self._changed.notify()

    def close(self) -> None:
        """End the thread; what has not been posted is lost, like the client."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _post(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._deltas or self._others or self._closed)
                if self._closed:
                    return
                deltas, self._deltas = self._deltas, {}
                others, self._others = self._others, []
            news = [News(deltas=tuple(map(joined, deltas.values())))] if deltas else []
            for message in (*news, *others):
                for part in parts_of(message):
                    self._client.post(part)
