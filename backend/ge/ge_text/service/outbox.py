"""What a service has to say to one client, joined while the client is slow to take it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from ge_backend.executor.server.services import Client
from ge_text.protocol import (
    MAX_BYTES,
    Delta,
    RequestFailed,
    StatsReply,
    TokenUpdates,
    joined,
    parts_of,
)

__all__ = ["Outbox"]

# Of one message; a quarter of what the other end takes, since all else stands while it is encoded.
NEWS_BYTES = MAX_BYTES // 4
# How many messages may wait that cannot be joined.
MAX_UNSAID = 1000


class Outbox:
    """A thread that posts; putting something here never waits.

    Args:
        client: gets it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._deltas: dict[tuple[int, int], list[Delta]] = {}
        self._others: list[RequestFailed | StatsReply] = []
        self._closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._post, name="outbox", daemon=True).start()

    def put(self, *deltas: Delta) -> None:
        """Say what is new of a sample, or of several, together as far as one message takes it."""
        with self._changed:
            for delta in deltas:
                self._deltas.setdefault((delta.number, delta.sample), []).append(delta)
            self._changed.notify_all()

    def say(self, message: RequestFailed | StatsReply) -> None:
        """Say something else, after all deltas that were put before."""
        with self._changed:
            self._others.append(message)
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Wait while much is unsaid: for the thread that takes what the client asks for."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._others) < MAX_UNSAID or self._closed)

    def close(self) -> None:
        """End the thread; what has not been posted is lost, like the client."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _post(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._deltas or self._others or self._closed)
                if self._closed:
                    return
                deltas, self._deltas = self._deltas, {}
                others, self._others = self._others, []
                self._changed.notify_all()
            for message in chain(_updates(deltas.values()), others):
                for part in parts_of(message):
                    self._client.post(part)


def _updates(samples: Iterable[Sequence[Delta]]) -> Iterator[TokenUpdates]:
    """Yield messages with the deltas of all samples, joined as far as one message takes them."""
    whole: list[Delta] = []
    room = NEWS_BYTES
    for deltas in samples:
        parts: list[Delta] = []
        for delta in chain.from_iterable(map(_pieces, deltas)):
            if (nbytes := _nbytes(delta)) > room and (whole or parts):
                yield TokenUpdates(deltas=(*whole, joined(parts)) if parts else tuple(whole))
                whole, parts, room = [], [], NEWS_BYTES
            parts.append(delta)
            room -= nbytes
        whole.append(joined(parts))
    if whole:
        yield TokenUpdates(deltas=tuple(whole))


def _nbytes(delta: Delta) -> int:
    """Return what a delta takes in a message, at most; `logprobs` is ASCII without controls."""
    logprobs = sum(2 * len(entries) + 3 for entries in delta.logprobs)
    return 512 + 12 * len(delta.text) + 20 * len(delta.ids) + logprobs


def _pieces(delta: Delta) -> Iterator[Delta]:
    """Yield a delta in pieces that fit into a message; text and end come with the last one."""
    middle = len(delta.ids) // 2
    if _nbytes(delta) <= NEWS_BYTES or not middle or not delta.logprobs:
        yield delta
        return
    first, second = (
        replace(delta, ids=delta.ids[some], logprobs=delta.logprobs[some])
        for some in (slice(middle), slice(middle, None))
    )
    yield from _pieces(replace(first, text="", finish=""))
    yield from _pieces(second)
