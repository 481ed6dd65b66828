"""A stub's end of text generation: requests go in, deltas come out, across the executor's death.

A request is kept here, with the tokens that have come, until its last sample has ended. So when the
executor dies, the next one is sent prompt and tokens, and goes on with the very tokens that would
have come: clients notice a pause. A request that was being served when two executors died is on
probation from then on: such requests are sent one at a time, the next when the one before has
brought a token. One over which an executor dies then is refused, and its neighbours are not. One
that is withdrawn holds up the next until the service has answered for it: its step goes on, and may
kill.

A request's time limit is kept by the engine, between two steps, and by this side where no executor
says anything: it hangs, or the next one is being started.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from ge_backend.deadline import over
from ge_backend.errors import (
    Cancelled,
    DeadlineExceeded,
    DeviceUnavailable,
    ExecutorLost,
    GeError,
    error_from_name,
)
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.client.reopening import TEXTS, Reopening, Replay
from ge_backend.executor.client.stream import ServiceStream
from ge_backend.executor.protocol.outstanding import OutstandingView
from ge_text.protocol import (
    Abort,
    Delta,
    Parts,
    RequestFailed,
    Sample,
    StatsReply,
    StatsRequest,
    Submit,
    TokenUpdates,
    parts_of,
)

__all__ = ["GenerationClient", "Sink"]

log = logging.getLogger(__name__)

# How often it is asked whether clients still wait: at each look those of every tenth request, in
# turn, so that each is asked about once a second. A question takes 10-25 us, and 60 where all cores
# are busy: asked ten times a second, 30 texts took a fifth of this process's time (tested on 2.51).
ASK_EVERY_S = 0.1
LOOKS = 10
# How late the engine may be with the error of a request whose time is over.
LATE_NS = 500_000_000
# Before it is tried again to start a thread.
THREAD_PAUSE_S = 0.2
# How long requests may still run when the model is left.
DRAIN_S = 20.0


class Sink(Protocol):
    """Where the deltas of one request go; called by one thread at a time."""

    def add(self, deltas: Sequence[Delta], *, last: bool) -> None:
        """Take what is new, one delta per sample; `last`: nothing comes any more."""

    def fail(self, error: GeError) -> None:
        """Take the error that ends the request; nothing comes any more."""

    @property
    def unwanted(self) -> bool:
        """Whether its client no longer waits for it."""


@dataclass(slots=True)
class _LiveSample:
    """What one sample of a request has so far: its tokens, and the last delta that came."""

    ids: list[int]
    last: Delta
    ended: bool

    def now(self) -> Sample:
        """Return it as an executor is sent it."""
        return Sample(ids=tuple(self.ids), ended=self.ended, cumulative=self.last.cumulative)


@dataclass(slots=True)
class _Live:
    """A request without its last delta.

    Attributes:
        submit: as it was asked.
        sent: whether the executor that lives has it.
        deaths: of executors that had it.
        samples: what each has so far; empty before anything came.
        proven: it has brought a token since it was sent last.
        deadline_ns: CLOCK_MONOTONIC; 0 is no deadline.
    """

    submit: Submit
    sink: Sink
    deadline_ns: int = 0
    sent: bool = False
    deaths: int = 0
    proven: bool = True
    samples: list[_LiveSample] = field(default_factory=list)

    def again(self) -> Submit:
        """Return what a later executor is sent: the time that is left is less the later that is."""
        samples = tuple(sample.now() for sample in self.samples) or self.submit.samples
        submit = replace(self.submit, samples=samples, again=self.deaths > 0)
        if self.deadline_ns:
            left_s = (self.deadline_ns - time.monotonic_ns()) / 1e9
            submit = replace(submit, timeout_s=max(0.001, round(left_s, 3)))
        return submit

    def late(self) -> DeadlineExceeded:
        """Return the error of a request whose time is over."""
        return DeadlineExceeded.within(self.submit.timeout_s)

    def note(self, deltas: Sequence[Delta]) -> tuple[list[Delta], bool]:
        """Keep what has come; return a delta per sample, and whether these were the last ones."""
        if not self.samples:
            first = replace(deltas[0], cumulative=0.0, finish="")
            given = self.submit.samples or (Sample(),) * first.samples
            self.samples = [
                _LiveSample(
                    list(one.ids), replace(first, sample=at, cumulative=one.cumulative), one.ended
                )
                for at, one in enumerate(given)
            ]
        for delta in deltas:
            sample = self.samples[delta.sample]
            sample.ids += delta.ids
            sample.last, sample.ended = delta, bool(delta.finish)
        self.proven = True
        new = {delta.sample: delta for delta in deltas}
        whole = [new.get(at) or _without_news(one.last) for at, one in enumerate(self.samples)]
        return whole, all(one.ended for one in self.samples)


def _without_news(delta: Delta) -> Delta:
    """Return how a sample stands, of which nothing is new."""
    return replace(delta, text="", ids=(), logprobs=())


@dataclass(slots=True)
class GenerationClient:
    """One stub's share of a model that generates text.

    Args:
        connect: returns a new connection to the device's executor.
        key: returns what names the service now, see `ge_text/service/service.py`.
        on_restart: called whenever the executor was found dead.
        on_stats: called with what has been counted, some time after `ask_stats`.
        on_close: called last, once the service is left.
        replay: what is tried again, and how often, when an executor has died.

    Raises:
        GeError: the model cannot be loaded.
    """

    connect: Callable[[], ExecutorConnection]
    key: Callable[[], str]
    on_restart: Callable[[], None] = lambda: None
    on_stats: Callable[[StatsReply], None] = lambda _: None
    on_close: Callable[[], None] = lambda: None
    replay: Replay = TEXTS
    _stream: ServiceStream | None = field(init=False, default=None)
    _failure: GeError | None = field(init=False, default=None)
    _live: dict[int, _Live] = field(init=False, default_factory=dict)
    _numbers: Iterator[int] = field(init=False, default_factory=partial(itertools.count, 1))
    # The request that was aborted while it was on trial; 0: none.
    _aborted_on_trial: int = field(init=False, default=0)
    _stats_asked: bool = field(init=False, default=False)
    _reopening: Reopening = field(init=False)
    _lock: threading.RLock = field(init=False, default_factory=threading.RLock)
    _opening: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._reopening = Reopening(
            "the model",
            "generation-reopen",
            self.replay,
            reopen=self._open,
            failed=self._do_without,
        )
        asking = threading.Thread(target=self._ask, name="generation-watch", daemon=True)
        self._open()
        try:
            asking.start()
        except RuntimeError as error:
            self._reopening.stop()
            self._leave()
            raise DeviceUnavailable(f"no thread can be started for time limits: {error}") from error

    @property
    def ready(self) -> bool:
        """Whether the executor can be had, or may be in a moment."""
        return self._failure is None

    @property
    def outstanding(self) -> OutstandingView | None:
        """What the executor shows of its work, its device and itself; None once it is left."""
        stream = self._stream
        return None if stream is None else stream.outstanding

    def submit(self, prompt: Submit, sink: Sink) -> None:
        """Ask for text; everything else comes to the sink.

        Raises:
            DeviceUnavailable: there is no executor, and the last attempts to have one failed.
            InvalidRequest: no executor could read it.
        """
        submit = replace(prompt, number=next(self._numbers), seed=secrets.randbits(62))
        submit.check()
        timeout_ns = round(prompt.timeout_s * 1e9)
        deadline_ns = time.monotonic_ns() + timeout_ns if timeout_ns else 0
        with self._lock:
            if self._failure is not None:
                raise _lost(self._failure)
            self._live[submit.number] = live = _Live(submit, sink, deadline_ns)
            live.sent = self._post(submit)

    def ask_stats(self) -> None:
        """Ask for figures, unless that has been done already; `on_stats` gets them."""
        with self._lock:
            if not self._stats_asked:
                self._stats_asked = True  # before it is sent: the answer comes in another thread
                if not self._post(StatsRequest()):
                    self._stats_asked = False

    def close(self) -> None:
        """Let what runs end, for `DRAIN_S` at most, and leave; what has not ended then fails."""
        until = time.monotonic() + DRAIN_S
        while self._live and time.monotonic() < until and self._failure is None:
            time.sleep(0.01)
        self._reopening.stop()
        self._leave()
        text = "the model was unloaded before the text was complete; ask again"
        self._fail_all(DeviceUnavailable(text))
        self.on_close()

    def _open(self) -> None:
        """Open the service and send what waits; one thread at a time.

        Raises:
            GeError: it cannot be had.
        """
        with self._opening:
            parts = Parts()
            stream = ServiceStream(
                self.connect(),
                kind="generation",
                key=self.key(),
                take=lambda body: self._take(parts, body),
                ended=self._lose,
            )
            with self._lock:
                before, self._stream = self._stream, stream
                self._failure, self._stats_asked = None, False
                for live in self._live.values():
                    live.sent = False
                self._send_waiting()
            if before is not None:
                before.close()
            if self._reopening.stopped.is_set():
                self._leave()

    def _leave(self) -> None:
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _take(self, parts: Parts, body: bytes) -> None:
        """Hand out what the service has posted; called by the stream's thread."""
        message = parts.take(body)
        if isinstance(message, StatsReply):
            self._stats_asked = False
            _log_errors(lambda: self.on_stats(message))
        elif isinstance(message, RequestFailed):
            self._end_trial(message.number)
            error = error_from_name(message.error, message.message)
            live = self._live.get(message.number)
            if isinstance(error, DeadlineExceeded) and live is not None:
                error = live.late()  # a later executor knows of the time that was left
            self._fail(message.number, error)
        elif isinstance(message, TokenUpdates):
            news: dict[int, list[Delta]] = {}
            for delta in message.deltas:
                news.setdefault(delta.number, []).append(delta)
            for number, deltas in news.items():
                self._deliver(number, deltas)

    def _deliver(self, number: int, deltas: Sequence[Delta]) -> None:
        with self._lock:
            live = self._live.get(number)
            if live is None:  # withdrawn
                self._end_trial(number)
                return
            whole, last = live.note(deltas)
            if last:
                del self._live[number]
            if live.deaths > self.replay.beside_others:
                self._send_waiting()
        _log_errors(lambda: live.sink.add(whole, last=last))

    def _fail(self, number: int, error: GeError) -> None:
        with self._lock:
            live = self._live.pop(number, None)
            self._send_waiting()
        if live is not None:
            _log_errors(lambda: live.sink.fail(error))

    def _fail_all(self, error: GeError) -> None:
        for number in list(self._live):
            self._fail(number, error)

    def _send_waiting(self) -> None:
        """Send what the executor does not have yet; the lock is held."""
        for live in self._live.values():
            if not live.sent and (live.deaths <= self.replay.beside_others or not self._on_trial()):
                live.sent = self._post(live.again())
                live.proven = live.deaths <= self.replay.beside_others

    def _on_trial(self) -> bool:
        if self._aborted_on_trial:
            return True
        return any(live.sent and not live.proven for live in self._live.values())

    def _end_trial(self, number: int) -> None:
        """Send the next one if the service has answered for what was withdrawn on trial."""
        with self._lock:
            if number == self._aborted_on_trial:
                self._aborted_on_trial = 0
                self._send_waiting()

    def _post(self, message: Submit | Abort | StatsRequest) -> bool:
        """Send a message; False where there is no executor: all is sent again to the next one."""
        try:
            if self._stream is not None:
                for part in parts_of(message):
                    self._stream.post(part)
        except ExecutorLost:
            return False
        return self._stream is not None

    def _lose(self, error: GeError) -> None:
        """Note that the executor is gone, and get another; called by the dead stream's thread."""
        if self._reopening.stopped.is_set():
            return
        log.warning("the executor is gone (%s); another is started", error)
        self.on_restart()
        guilty: list[int] = []
        with self._lock:
            self._aborted_on_trial = 0
            for number, live in self._live.items():
                live.deaths += live.sent
                if live.sent and (not live.proven or live.deaths > self.replay.deaths):
                    guilty.append(number)
                live.sent = False
        for number in guilty:
            text = "the executor died each time that it served this request; it is not tried again"
            self._fail(number, ExecutorLost(f"{text}. See the server's log for the reason"))
        while not self._reopening.stopped.is_set():
            try:
                self._reopening.begin()
            except RuntimeError as lacking:  # this thread has nothing else to do
                log.warning("another executor cannot be started yet: %s", lacking)
                self._reopening.stopped.wait(THREAD_PAUSE_S)
            else:
                return

    def _do_without(self, error: GeError) -> None:
        self._failure = error
        self._fail_all(_lost(error))

    def _ask(self) -> None:
        """Abort requests whose clients no longer wait, or whose time was over a while ago."""
        look = 0
        while not self._reopening.stopped.wait(ASK_EVERY_S):
            with self._lock:
                live = list(self._live.items())
            late_ns = time.monotonic_ns() - LATE_NS
            turns, look = max(1, min(LOOKS, len(live))), look + 1
            for number, request in live:
                if number % turns == look % turns and request.sink.unwanted:
                    self._abort(number, Cancelled.by_client())
                elif over(request.deadline_ns, late_ns):
                    self._abort(number, request.late())

    def _abort(self, number: int, error: GeError) -> None:
        with self._lock:
            live = self._live.get(number)
            if live is not None and live.sent and not live.proven:
                self._aborted_on_trial = number
            self._post(Abort(number=number))
        self._fail(number, error)


def _lost(why: GeError) -> DeviceUnavailable:
    return DeviceUnavailable(f"the model is lost, and tried again meanwhile: {why}")


def _log_errors(tell: Callable[[], None]) -> None:
    """Do it; log what it raises: the thread has others to serve."""
    try:
        tell()
    except Exception:
        log.exception("something could not be handed out")
