"""A queue of the model's own, with the bounds that the host's has at the price of stalls.

Any queue policy in `dynamic_batching` makes Triton 2.51 pause now and then for up to half a second
(docs/scheduling.md). So, for a model with bounds, the host hands requests over as they come, and
they wait here for one thread that serves them batch by batch. Every response goes through its
request's sender, which costs 90-200 us each (tested on 2.51); a returned list costs a few.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ge_backend.deadline import earliest, left_s, over
from ge_backend.errors import Cancelled, DeadlineExceeded, GeError, OutOfMemory, QueueFull
from ge_backend.host.codec import HostRequest, send_response
from ge_backend.host.room import check_room_to_wait
from ge_backend.metrics import Recorder

__all__ = ["Backlog", "BatchServer"]

# Asking the host whether a client has given up costs 10-25 us; who waited less is not asked about.
ASK_AFTER_NS = 5_000_000
# And while no more may wait, this many are asked so often, in turn: until then none is let in.
ASK_EVERY_NS = 50_000_000
MAX_ASKED = 100
GIVEN_UP = "the client has given up on the request while it waited"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchServer:
    """What serves the requests of a backlog.

    Attributes:
        serve: answers a batch: a response for each request, None where it was sent already.
        refuse: returns the response to a request that is not served.
        free_at_ns: when the batch that runs is expected to end, CLOCK_MONOTONIC; infinite where
            not known.
    """

    serve: Callable[[Sequence[HostRequest]], list[Any]]
    refuse: Callable[[GeError], Any]
    free_at_ns: Callable[[], float]


class Backlog:
    """Requests that wait in this stub, and the thread that serves them.

    Args:
        service: what serves them.
        recorder: counts how many wait, and how long.
        max_rows: of a batch; 0 where a request is a batch by itself.
        max_size: how many may wait while a batch is served; 0 is no bound.
    """

    def __init__(
        self, service: BatchServer, recorder: Recorder, *, max_rows: int, max_size: int
    ) -> None:
        self._service = service
        self._recorder = recorder
        self._max_rows = max_rows
        self._max_size = max_size
        self._next: list[HostRequest] = []  # the batch whose turn it is
        self._waiting: deque[HostRequest] = deque()
        self._serving = self._closing = False
        self._asked_ns = -ASK_EVERY_NS
        self._asked_to = 0  # the place of who is asked next
        self._alarm_ns = 0  # when the deadlines are looked at next; 0 is never
        self._changed = threading.Condition()
        self._count()
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in {"backlog": self._work, "deadlines": self._keep_deadlines}.items()
        ]
        for thread in self._threads:
            thread.start()

    def put(self, host_requests: Sequence[HostRequest]) -> list[Any]:
        """Take over what came together: a response to what is refused, None for all that waits."""
        with self._changed:
            late = self._take_late() + self._take_given_up()
            if self._serving:
                responses = [self._admit(host_request) for host_request in host_requests]
            else:
                self._serving = True
                self._next = list(host_requests)
                self._changed.notify_all()
                responses = [None] * len(host_requests)
        self._refuse(late)
        return responses

    def close(self) -> None:
        """Serve what waits, then end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _admit(self, host_request: HostRequest) -> Any:
        """Let a request wait and return None, or return its refusal; the lock is held."""
        if self._max_size and len(self._waiting) >= self._max_size:
            return self._service.refuse(
                QueueFull(
                    f"{len(self._waiting)} requests wait for this model instance, the most that "
                    "max_queue_size allows; send less at once, or try again later"
                )
            )
        try:
            check_room_to_wait()
        except OutOfMemory as full:
            return self._service.refuse(full)
        missed_ns = self._service.free_at_ns() - host_request.deadline_ns
        if host_request.deadline_ns and 0 < missed_ns < math.inf:
            return self._service.refuse(
                host_request.too_late(
                    f"the batch before this request is expected to end {missed_ns / 1e6:.1f} ms "
                    "after the time by which it must begin; allow more time or send less at once"
                )
            )
        self._waiting.append(host_request)
        self._count()
        if host_request.deadline_ns and not over(self._alarm_ns, host_request.deadline_ns):
            self._changed.notify_all()
        return None

    def _work(self) -> None:
        while (batch := self._take()) is not None:
            for host_request, response in zip(batch, self._service.serve(batch), strict=True):
                if response is not None:
                    send_response(host_request.request, response, self._recorder)

    def _keep_deadlines(self) -> None:
        """Refuse requests as their time passes, also while a batch takes longer than expected."""
        while True:
            with self._changed:
                late = self._take_late()
                if not late:
                    if self._closing:
                        return
                    self._alarm_ns = earliest(each.deadline_ns for each in self._waiting)
                    self._changed.wait(left_s(self._alarm_ns, time.monotonic_ns()))
            self._refuse(late)

    def _take(self) -> list[HostRequest] | None:
        """Wait for the next batch; None when there will be none."""
        while True:
            with self._changed:
                late = self._take_late()
                batch, self._next = self._next or self._take_rows(), []
                if not (batch or late):
                    if self._closing:
                        return None
                    self._serving = False
                    self._changed.wait()
            self._refuse(late)
            if batch := self._still_wanted(batch):
                return batch

    def _take_rows(self) -> list[HostRequest]:
        """Take the requests that have waited longest, as many as fit; the lock is held."""
        batch: list[HostRequest] = []
        room = self._max_rows
        while self._waiting and (not batch or self._waiting[0].rows <= room):
            batch.append(self._waiting.popleft())
            room -= batch[-1].rows
        self._count_out(batch)
        return batch

    def _take_late(self) -> list[tuple[HostRequest, GeError]]:
        """Take the requests whose time is over, with their errors; the lock is held."""
        now_ns = time.monotonic_ns()
        late = {each for each in self._waiting if over(each.deadline_ns, now_ns)}
        self._take_out(late)
        return [(host_request, _too_late(host_request, now_ns)) for host_request in late]

    def _take_given_up(self) -> list[tuple[HostRequest, GeError]]:
        """Where no more may wait, take those that no client waits for; the lock is held."""
        now_ns = time.monotonic_ns()
        full = 0 < self._max_size <= len(self._waiting)
        if not full or now_ns < self._asked_ns + ASK_EVERY_NS:
            return []
        self._asked_ns = now_ns
        first = self._asked_to if self._asked_to < len(self._waiting) else 0
        asked = list(islice(self._waiting, first, first + MAX_ASKED))
        gone = {host_request for host_request in asked if host_request.request.is_cancelled()}
        self._asked_to = first + len(asked) - len(gone)
        self._take_out(gone)
        return [(host_request, Cancelled(GIVEN_UP)) for host_request in gone]

    def _take_out(self, gone: Collection[HostRequest]) -> None:
        """Let these wait no longer; the lock is held."""
        if gone:
            self._waiting = deque(each for each in self._waiting if each not in gone)
            self._count_out(gone)

    def _still_wanted(self, batch: Sequence[HostRequest]) -> list[HostRequest]:
        """Answer those whose clients have given up; return the others."""
        before_ns = time.monotonic_ns() - ASK_AFTER_NS
        given_up = {a for a in batch if a.came_ns < before_ns and a.request.is_cancelled()}
        self._refuse([(host_request, Cancelled(GIVEN_UP)) for host_request in given_up])
        return [host_request for host_request in batch if host_request not in given_up]

    def _count(self) -> None:
        self._recorder.set("ge_backlog_requests", len(self._waiting))

    def _count_out(self, gone: Collection[HostRequest]) -> None:
        now_ns = time.monotonic_ns()
        waited_ns = sum(now_ns - host_request.came_ns for host_request in gone)
        self._count()
        self._recorder.add("ge_backlog_seconds_total", waited_ns / 1e9)

    def _refuse(self, refused: Iterable[tuple[HostRequest, GeError]]) -> None:
        for host_request, error in refused:
            send_response(host_request.request, self._service.refuse(error), self._recorder)


def _too_late(host_request: HostRequest, now_ns: int) -> DeadlineExceeded:
    return host_request.too_late(
        f"the request waited {(now_ns - host_request.came_ns) / 1e6:.1f} ms and had to begin "
        f"{(now_ns - host_request.deadline_ns) / 1e6:.1f} ms ago; allow more time or send less "
        "at once"
    )
