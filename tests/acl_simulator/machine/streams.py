"""Streams: work that runs later, in order, and only as far as somebody waits for it.

A stream computes nothing when work is submitted. It runs in the thread that synchronises, or after
`Times.delay_s`. Durations are virtual: a wait with a timeout ends when the work's own duration
exceeds it, however fast or loaded this computer is.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from acl_simulator.codes import Code
from acl_simulator.machine.hazards import Access, Clock, Hazards
from acl_simulator.refusals import Misuse, Refusal

__all__ = ["Stream", "Times", "Work"]


@dataclass(slots=True, kw_only=True)
class Times:
    """When work runs.

    Attributes:
        delay_s: real seconds after which work runs even if nobody waits; None: never before.
        scale: real seconds that a kernel of one virtual second takes.
        paused: nothing runs; who waits, waits.
    """

    delay_s: float | None = None
    scale: float = 0.0
    paused: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """One task of a stream.

    Attributes:
        begin, finish: what happens at its start and at its end, `duration_ms` later. A `Refusal`
            becomes the stream's error.
        wait: where it first waits for another stream: takes the patience in ms, and returns
            whether it came to its end.
        stream, number, clock: filled in when it is submitted.
    """

    name: str
    accesses: Sequence[Access] = ()
    begin: Callable[[], None] = lambda: None
    finish: Callable[[], None] = lambda: None
    wait: Callable[[float], bool] = lambda _: True
    duration_ms: float = 0.0
    stream: Any = None
    number: int = 0
    clock: Clock = field(default_factory=dict)
    begun: bool = False


class Stream:
    """One queue of work.

    Attributes:
        submitted, completed: how many tasks.
        clock: after which task of every stream the next one comes.
        busy_ms: the virtual time that its work has taken.
        error: the first error since the last synchronisation.
        limits: cores by kind, where they are limited.
    """

    def __init__(self, context: Any, turn: threading.Condition, hazards: Hazards, times: Times):
        self.context = context
        self.handle = 0
        self.submitted = 0
        self.completed = 0
        self.clock: Clock = {}
        self.busy_ms = 0.0
        self.error: Refusal | None = None
        self.limits: dict[int, int] = {}
        self._turn = turn
        self._hazards = hazards
        self._times = times
        self._queue: deque[Work] = deque()
        self._busy = False

    def __str__(self) -> str:
        return f"{self.handle:#x}"

    def submit(self, work: Work) -> None:
        """Put work at the end of the queue, unless it races with what is in flight."""
        work.stream, work.number = self, self.submitted + 1
        work.clock = {**self.clock, self: work.number}
        self._hazards.launch(work)
        self.submitted = work.number
        self.clock = work.clock
        self._queue.append(work)
        self._turn.notify_all()
        if self._times.delay_s is not None:
            timer = threading.Timer(self._times.delay_s, self._run_by_itself, [work.number])
            timer.daemon = True
            timer.start()

    def synchronise(self, patience_ms: float = math.inf) -> bool:
        """Run all that is submitted; return False if that takes longer than `patience_ms`.

        Raises:
            Refusal: work has failed since the last time.
        """
        last, clock = self.submitted, self.clock
        if not self.drive(last, patience_ms):
            return False
        self._hazards.see({**clock, self: last})
        error, self.error = self.error, None
        if error is not None:
            raise error
        return True

    def drive(self, until: int, patience_ms: float) -> bool:
        """Run work up to task `until`; return False if that takes longer than `patience_ms`.

        The turn is held, and let go while time passes.
        """
        while self.completed < until:
            if self._busy or self._times.paused:
                self._turn.wait()
                continue
            self._busy = True
            before = self.busy_ms
            try:
                ended = self._step(patience_ms)
            finally:
                self._busy = False
                self._turn.notify_all()
            if not ended:
                return False
            patience_ms -= self.busy_ms - before
        return True

    def discard(self) -> None:
        """Drop all that has not run."""
        self._queue.clear()
        self.completed = self.submitted
        self._hazards.forget(self)

    def _step(self, patience_ms: float) -> bool:
        work = self._queue[0]
        if not work.wait(patience_ms):
            return False
        if not work.begun:
            work.begun = True
            if not self._guard(work.begin):
                work.finish, work.duration_ms = lambda: None, 0.0
        spent = min(work.duration_ms, patience_ms)
        if math.isinf(spent):
            return False  # never: whoever waits without a timeout has to say so
        self._let_pass(spent)
        if spent < work.duration_ms:
            work.duration_ms -= spent
            return False
        if self._queue and self._queue[0] is work:  # not discarded meanwhile
            self._guard(work.finish)
            self._queue.popleft()
            self.completed += 1
        return True

    def _let_pass(self, spent_ms: float) -> None:
        self.busy_ms += spent_ms
        until = time.monotonic() + spent_ms / 1000 * self._times.scale
        while self._times.paused or (left := until - time.monotonic()) > 0:
            self._turn.wait(None if self._times.paused else left)

    def _guard(self, act: Callable[[], None]) -> bool:
        """Run one end of some work; keep its error for whoever synchronises."""
        try:
            act()
        except Refusal as refusal:
            self.error = self.error or refusal
        except Misuse as misuse:  # already recorded; the stream's user gets an error as well
            self.error = self.error or Refusal(Code.AICORE_EXCEPTION, str(misuse))
        else:
            return True
        return False

    def _run_by_itself(self, number: int) -> None:
        with self._turn:
            self.drive(number, math.inf)
