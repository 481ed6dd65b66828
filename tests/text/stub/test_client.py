"""Requests for text outlive executors: nothing is lost, nothing comes twice, nobody else suffers."""

import itertools
import socket
import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from builders.null_models import comes_true
from fakes.null_device import NullDevice
from fakes.writing_service import KINDS, WritingService
from ge_backend.errors import (
    Cancelled,
    DeadlineExceeded,
    DeviceUnavailable,
    ExecutorLost,
    InvalidRequest,
    ModelError,
)
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.client.reopening import TEXTS
from ge_backend.executor.server.executor import Executor
from ge_text import protocol as generation_messages
from ge_text.protocol import Delta, RequestFailed, Submit, TokenUpdates
from ge_text.stub import client as generation
from ge_text.stub.client import GenerationClient


class Sink:
    def __init__(self):
        self.text, self.ids, self.error, self.over = "", [], None, threading.Event()
        self.cumulative = []
        self.unwanted = False

    def add(self, deltas, *, last):
        (delta,) = deltas
        self.text += delta.text
        self.ids += delta.ids
        self.cumulative += [delta.cumulative] * len(delta.ids)
        if last:
            self.over.set()

    def fail(self, error):
        self.error = error
        self.over.set()


class Rig:
    """An executor whose connections can be cut, which to its client is its death."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(generation, "THREAD_PAUSE_S", 0.01)
        self.executor = Executor(NullDevice(), linger_s=60.0, kinds=KINDS)
        self.sockets, self.restarts, self.seen = [], 0, []
        self.refusal = None
        self.client = GenerationClient(
            self.connect,
            lambda: "key",
            on_restart=self.count,
            on_stats=self.seen.append,
            replay=replace(TEXTS, first_s=0.01),
        )
        self.service = WritingService.made
        self.service.kill = self.kill

    def connect(self):
        if self.refusal is not None:
            raise self.refusal
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.executor.accept(theirs)
        self.sockets.append(ours)
        return ExecutorConnection(ours)

    def count(self):
        self.restarts += 1

    def kill(self):
        self.sockets[-1].shutdown(socket.SHUT_RDWR)

    def ask(self, text, tokens=5, timeout_s=0.0):
        sink = Sink()
        prompt = Submit(text=text, ids=(), parameters=str(tokens), timeout_s=timeout_s)
        self.client.submit(prompt, sink)
        return sink


@pytest.fixture
def rig(monkeypatch):
    rig = Rig(monkeypatch)
    yield rig
    rig.client.close()
    rig.executor.join()
    rig.executor.close()


def test_deltas_come_in_order_until_the_last(rig):
    """Several requests are under way at once."""
    sinks = [rig.ask(f"text {number}", tokens=20) for number in range(4)]
    assert all(sink.over.wait(20) for sink in sinks)
    assert [sink.ids for sink in sinks] == [list(range(20))] * 4


def test_an_error_is_the_senders_alone(rig):
    """A neighbour's text goes on."""
    wrong, right = rig.ask("wrong"), rig.ask("right")
    assert wrong.over.wait(20)
    assert right.over.wait(20)
    assert isinstance(wrong.error, InvalidRequest)
    assert right.ids == [0, 1, 2, 3, 4]


def test_what_no_executor_could_read_is_refused_before_it_is_sent(rig, monkeypatch):
    """It would end the connection, and each next one: all texts of the stub with it."""
    monkeypatch.setattr(generation_messages, "MAX_REQUEST_BYTES", 4000)
    right = rig.ask("right", tokens=20)
    for token in (-(2**63), 2**63 - 1):
        with pytest.raises(InvalidRequest, match=f"input_ids has {token}, which is no token id"):
            rig.client.submit(Submit(text="", ids=(1, token), parameters="5"), Sink())
    rig.ask("e" * 3000)
    with pytest.raises(InvalidRequest, match=r"takes \d+ bytes, of which a model takes 4000"):
        rig.ask("\u00e9" * 3000)
    assert right.over.wait(20)
    assert (right.ids, rig.restarts) == (list(range(20)), 0)


def test_text_goes_on_after_an_executors_death(rig):
    """The next one is sent prompt, seed and tokens, and no token is lost or comes twice."""
    rig.service.hold_after = 3
    sink = rig.ask("hold", tokens=6)
    assert comes_true(lambda: sink.ids == [0, 1, 2])
    rig.kill()
    assert comes_true(lambda: rig.restarts == 1)
    assert sink.over.wait(20)
    assert sink.ids == [0, 1, 2, 3, 4, 5]
    first, second = rig.service.submitted
    assert second.samples[0].ids == (0, 1, 2)
    assert second.samples[0].cumulative == sink.cumulative[2]
    assert (first.again, second.again) == (False, True)
    assert (second.text, second.seed, second.parameters) == (first.text, first.seed, "6")


def test_a_request_that_kills_fails_and_its_neighbours_do_not(rig):
    """Those that were there when executors died are sent one by one, and found innocent."""
    rig.service.hold_after = 2
    neighbours = [rig.ask(f"hold {number}", tokens=4) for number in range(3)]
    assert comes_true(lambda: all(sink.ids == [0, 1] for sink in neighbours))
    deadly = rig.ask("kill")
    assert deadly.over.wait(10)
    assert isinstance(deadly.error, ExecutorLost)
    assert comes_true(lambda: rig.service.go() or all(sink.over.is_set() for sink in neighbours))
    assert [sink.ids for sink in neighbours] == [[0, 1, 2, 3]] * 3
    assert [sink.error for sink in neighbours] == [None] * 3
    assert 2 <= rig.restarts <= 4


class Trial:
    """Two requests that two executors have died over; the first is in a long step, on trial."""

    def __init__(self, rig):
        self.rig, self.long = rig, True
        begin = rig.service.begin
        rig.service.begin = lambda *asked: None if self.long else begin(*asked)
        self.withdrawn, self.next = rig.ask("first"), rig.ask("second")
        for deaths in (1, 2):
            assert comes_true(lambda known=deaths: len(self.texts) == 2 * known)
            rig.kill()
            assert comes_true(lambda known=deaths: rig.restarts == known)
        assert comes_true(lambda: len(self.texts) == 5)
        self.withdrawn.unwanted = True
        assert self.withdrawn.over.wait(20)
        assert isinstance(self.withdrawn.error, Cancelled)

    @property
    def texts(self):
        """Those of the requests that the service has got."""
        return [asked.text for asked in self.rig.service.submitted]

    def all_was_read(self):
        """Wait until the service has read what was sent."""
        count = len(self.rig.seen)
        self.rig.client.ask_stats()
        assert comes_true(lambda: len(self.rig.seen) > count)


def test_nobody_is_blamed_for_the_death_of_an_executor_over_what_was_withdrawn(rig):
    """A step goes on when nobody wants its text any more; the next is tried when it has ended."""
    trial = Trial(rig)
    trial.all_was_read()
    assert trial.texts[4:] == ["first"]
    trial.long = False
    rig.kill()
    assert trial.next.over.wait(20)
    assert (trial.next.ids, trial.next.error) == ([0, 1, 2, 3, 4], None)


@pytest.mark.parametrize("kind", ["RequestFailed", "TokenUpdates"])
def test_the_next_is_tried_once_the_step_of_what_was_withdrawn_has_ended(rig, kind):
    """That the service answers for it says so: with its token, or that it is cancelled."""
    trial = Trial(rig)
    trial.long = False
    answers = {
        "RequestFailed": RequestFailed(number=1, error="Cancelled", message="it was cancelled"),
        "TokenUpdates": TokenUpdates(deltas=(Delta(number=1, sample=0, text="a", ids=(5,)),)),
    }
    rig.service.say(list(rig.service.parts)[-1], answers[kind])
    assert trial.next.over.wait(20)
    assert (trial.next.ids, trial.next.error) == ([0, 1, 2, 3, 4], None)
    assert rig.restarts == 2


def serves_again(rig):
    """Let the model be opened; the next request is served to its end."""
    rig.refusal = None
    assert comes_true(lambda: rig.client.ready)
    later = rig.ask("later")
    assert later.over.wait(20)
    assert later.ids == [0, 1, 2, 3, 4]


def test_without_an_executor_requests_are_refused_until_there_is_one(rig):
    """What waited fails with the reason; once the executor is back, requests are served."""
    rig.service.hold_after = 1
    waiting = rig.ask("hold")
    assert comes_true(lambda: waiting.ids == [0])
    rig.refusal = ModelError("the file is gone")
    rig.kill()
    assert waiting.over.wait(20)
    assert isinstance(waiting.error, DeviceUnavailable)
    assert not rig.client.ready
    with pytest.raises(
        DeviceUnavailable, match="lost, and tried again meanwhile: the file is gone"
    ):
        rig.ask("now")
    serves_again(rig)


def test_nobody_waits_for_executors_that_die_over_the_model_again_and_again(rig):
    """As where it needs more memory than there is by now; once one lives, requests are served."""
    rig.service.hold_after = 1
    waiting = rig.ask("hold")
    assert comes_true(lambda: waiting.ids == [0])
    rig.refusal = ExecutorLost("it was killed")
    rig.kill()
    assert waiting.over.wait(20)
    assert isinstance(waiting.error, DeviceUnavailable)
    assert str(waiting.error) == "the model is lost, and tried again meanwhile: it was killed"
    assert not rig.client.ready
    serves_again(rig)


def test_what_nobody_foresaw_ends_no_attempt_to_open_the_model_again(rig, caplog):
    """What waits fails, the next request is served, and the log has the traceback."""
    rig.service.hold_after = 1
    waiting = rig.ask("hold")
    assert comes_true(lambda: waiting.ids == [0])
    rig.refusal = TypeError("no number")
    rig.kill()
    assert waiting.over.wait(20)
    assert isinstance(waiting.error, DeviceUnavailable)
    assert "TypeError: no number (see the server's log)" in str(waiting.error)
    assert not rig.client.ready
    serves_again(rig)
    assert "Traceback" in caplog.text


def test_a_client_that_gives_up_frees_the_device(rig):
    """The service is told, and the request ends as cancelled."""
    rig.service.hold_after = 1
    sink = rig.ask("hold")
    assert comes_true(lambda: sink.ids == [0])
    sink.unwanted = True
    assert sink.over.wait(20)
    assert isinstance(sink.error, Cancelled)
    assert comes_true(lambda: rig.service.withdrawn == [1])


def test_clients_are_asked_in_turn(rig, monkeypatch):
    """A look asks for a tenth of the requests, and none twice before each other one."""
    monkeypatch.setattr(generation, "ASK_EVERY_S", 0.001)
    rig.service.hold_after = 1
    sinks = [rig.ask("hold") for _ in range(30)]
    asked = []

    class Asked(Sink):
        unwanted = property(asked.append)

    for sink in sinks:
        del sink.unwanted
        sink.__class__ = Asked
    asked.clear()  # of when some were not watched yet
    assert comes_true(lambda: len(asked) > 300)
    counts = Counter(map(id, asked[:300]))
    assert set(counts.values()) == {10}
    assert len(counts) == 30


@pytest.fixture
def clock(monkeypatch):
    """The clock of time limits, which a test may set ahead."""
    clock = SimpleNamespace(ahead_s=0.0)
    read = SimpleNamespace(
        monotonic=time.monotonic,
        monotonic_ns=lambda: time.monotonic_ns() + int(clock.ahead_s * 1e9),
        sleep=time.sleep,
    )
    monkeypatch.setattr(generation, "time", read)
    return clock


def test_a_time_limit_is_kept_while_the_executor_says_nothing(rig, clock):
    """The error says the limit, the service is told, and requests without one wait on."""
    rig.service.hold_after = 1
    patient, pressed = rig.ask("hold"), rig.ask("hold", timeout_s=60.0)
    assert comes_true(lambda: pressed.ids == [0])
    assert not pressed.over.is_set()
    clock.ahead_s = 61.0
    assert pressed.over.wait(20)
    assert isinstance(pressed.error, DeadlineExceeded)
    assert "not done within its 60 s" in str(pressed.error)
    assert pressed.ids == [0]
    assert comes_true(lambda: rig.service.withdrawn == [2])
    assert not patient.over.is_set()
    rig.service.go()
    assert patient.over.wait(20)
    assert patient.error is None


def test_a_time_limit_is_kept_while_the_next_executor_is_started(rig, clock):
    """Nobody has the request then, and its client is told all the same."""
    rig.service.hold_after = 1
    sink = rig.ask("hold", timeout_s=60.0)
    assert comes_true(lambda: sink.ids == [0])
    started = threading.Event()
    connect = rig.connect
    rig.client.connect = lambda: started.wait(20) and connect()
    rig.kill()
    assert comes_true(lambda: rig.restarts == 1)
    clock.ahead_s = 61.0
    assert sink.over.wait(20)
    assert isinstance(sink.error, DeadlineExceeded)
    started.set()
    later = rig.ask("later")
    assert later.over.wait(20)
    assert later.ids == [0, 1, 2, 3, 4]


def test_the_next_executor_is_told_how_much_time_is_left(rig, clock):
    """A request does not begin its time anew with every executor."""
    rig.service.hold_after = 1
    sink = rig.ask("hold", tokens=2, timeout_s=60.0)
    assert comes_true(lambda: sink.ids == [0])
    clock.ahead_s = 20.0
    rig.kill()
    assert sink.over.wait(20)
    first, second = rig.service.submitted
    assert 0 < second.timeout_s < first.timeout_s - 19.9


def test_a_broken_sink_hurts_nobody(rig):
    """A response that cannot be sent is logged; the thread goes on."""
    broken = Sink()
    broken.add = lambda deltas, last: 1 / 0
    rig.client.submit(Submit(text="a", ids=(), parameters="2"), broken)
    whole = rig.ask("b")
    assert whole.over.wait(20)
    assert whole.ids == [0, 1, 2, 3, 4]


def test_closing_lets_texts_end_for_a_while(rig, monkeypatch):
    """What has not ended by then is told, as what may be asked again: its client is there."""
    rig.service.hold_after = 1
    held, ending = rig.ask("hold"), rig.ask("ending", tokens=200)
    assert comes_true(lambda: held.ids == [0])
    ticks = itertools.count()  # also where that text has ended before anything is closed
    clock = SimpleNamespace(
        monotonic=lambda: 1e9 * next(ticks) if ending.over.is_set() else 0.0,
        monotonic_ns=time.monotonic_ns,
        sleep=time.sleep,
    )
    monkeypatch.setattr(generation, "time", clock)
    rig.client.close()
    assert len(ending.ids) == 200
    assert isinstance(held.error, DeviceUnavailable)


def test_figures_come_when_asked_for(rig):
    """A look is answered some time later, also by the next executor."""
    rig.client.ask_stats()
    assert comes_true(lambda: [seen.counts for seen in rig.seen] == [{"steps": 1}])
    rig.kill()
    assert comes_true(lambda: rig.restarts == 1 and len(rig.sockets) == 2)
    assert comes_true(lambda: rig.client.ask_stats() or len(rig.seen) >= 2)


def test_who_is_late_at_a_later_executor_is_told_of_the_whole_limit(rig):
    """That one was sent what was left of it."""
    rig.service.hold_after = 1
    sink = rig.ask("hold", timeout_s=60.0)
    assert comes_true(lambda: sink.ids == [0])
    late = "the request was not done within its 0.001 s; allow it more"
    refused = RequestFailed(number=1, error="DeadlineExceeded", message=late)
    rig.service.say(list(rig.service.parts)[-1], refused)
    assert sink.over.wait(20)
    assert str(sink.error) == "the request was not done within its 60 s; allow it more"


def test_looks_do_not_pile_up_at_an_executor_that_says_nothing(rig, monkeypatch):
    """Else they would fill the way to it, and whoever posts next would wait for it."""
    answers = []
    monkeypatch.setattr(rig.service, "say", lambda *answer: answers.append(answer))
    for _ in range(5):
        rig.client.ask_stats()
    assert comes_true(lambda: len(answers) == 1)
    time.sleep(0.05)
    assert len(answers) == 1


def test_what_the_executor_shows_of_itself_is_seen(rig):
    """Its memory and the work it holds, for the metrics; nothing of one that is gone."""
    rig.executor.outstanding.show_memory(5 << 20)
    rig.executor.outstanding.change(7)
    shown = rig.client.outstanding
    assert (shown.memory_bytes, shown.ns) == (5 << 20, 7)
    rig.executor.outstanding.change(-7)
    rig.client.close()
    assert rig.client.outstanding is None


def test_a_model_that_cannot_be_opened_is_no_client():
    """The first opening raises; nothing runs on."""

    def connect():
        raise DeviceUnavailable("no device")

    before = set(threading.enumerate())
    with pytest.raises(DeviceUnavailable):
        GenerationClient(connect, lambda: "key")
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("name", ["generation-reopen", "read generation", "write generation"])
def test_texts_go_on_or_fail_where_no_thread_can_be_started_for_a_moment(rig, monkeypatch, name):
    """And the next request is served: another attempt is made until one succeeds."""
    start, refused = threading.Thread.start, []

    def limited(self):
        if self.name == name and not refused:
            refused.append(self)
            raise RuntimeError("can't start new thread")
        start(self)

    rig.service.hold_after = 1
    sink = rig.ask("hold", tokens=3)
    assert comes_true(lambda: sink.ids == [0])
    monkeypatch.setattr(threading.Thread, "start", limited)
    rig.kill()
    assert sink.over.wait(20)
    assert refused
    assert sink.ids == [0, 1, 2] or isinstance(sink.error, DeviceUnavailable)
    assert comes_true(lambda: rig.client.ready)
    later = rig.ask("later")
    assert later.over.wait(20)
    assert later.ids == [0, 1, 2, 3, 4]


def test_a_client_without_its_own_thread_is_none(rig, monkeypatch):
    """It could keep no time limit; the service is left again."""
    start = threading.Thread.start

    def limited(self):
        if self.name == "generation-watch":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    before = rig.executor.num_connections
    with pytest.raises(DeviceUnavailable, match="no thread can be started for time limits"):
        GenerationClient(rig.connect, lambda: "key")
    assert comes_true(lambda: rig.executor.num_connections == before)


def test_a_time_limit_is_kept_while_the_way_to_the_executor_is_full(rig, monkeypatch):
    """Whoever asks is not held up either."""
    gate, receive = threading.Event(), WritingService.receive
    monkeypatch.setattr(WritingService, "receive", lambda *a: (gate.wait(20), receive(*a)))
    sinks = [rig.ask("hold" + "x" * 2000, timeout_s=0.2) for _ in range(500)]
    assert all(sink.over.wait(20) for sink in sinks)
    assert {type(sink.error) for sink in sinks} == {DeadlineExceeded}
    gate.set()
