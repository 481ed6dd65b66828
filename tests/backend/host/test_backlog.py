"""Requests wait in their order and within their bounds, and each gets one response."""

import threading
import time

import numpy as np
import pytest

from builders.null_models import comes_true
from ge_backend.errors import OutOfMemory
from ge_backend.metrics import Recorder


class Bench:
    """A backlog whose batches are served when they are let go."""

    def __init__(self, pb_utils, *, max_rows=4, max_size=0):
        from ge_backend.host import backlog

        self._pb_utils = pb_utils
        self.batches, self.free_at_ns = [], 0.0
        self.recorder = Recorder()
        self._serving, self._go = threading.Semaphore(0), threading.Semaphore(0)
        service = backlog.BatchServer(
            serve=self._serve, refuse=lambda error: error, free_at_ns=lambda: self.free_at_ns
        )
        self.backlog = backlog.Backlog(service, self.recorder, max_rows=max_rows, max_size=max_size)

    def _serve(self, batch):
        self.batches.append([host_request.request.name for host_request in batch])
        self._serving.release()
        self._go.acquire()
        names = [host_request.request.name for host_request in batch]
        return [None if name == "early" else f"served {name}" for name in names]

    def begun(self):
        """Wait until the next batch is being served."""
        assert self._serving.acquire(timeout=10)

    def go(self, count=1):
        """Let batches end."""
        self._go.release(count)

    def request(self, name, *, rows=1, waited_ns=0, in_ns=0):
        """Return a request: when it came before now, and how long it has from now on."""
        from ge_backend.host.codec import HostRequest

        request = self._pb_utils.InferenceRequest([self._pb_utils.Tensor("x", np.zeros((rows, 2)))])
        request.name = name
        now_ns = time.monotonic_ns()
        return HostRequest(request, now_ns - waited_ns, now_ns + in_ns if in_ns else 0)

    def put(self, *host_requests):
        """Return the refusals as texts, None for those that wait."""
        return [
            error and f"{type(error).__name__}: {error}"
            for error in self.backlog.put(host_requests)
        ]

    def counted(self, name):
        return self.recorder.drain().get((name, ()), 0.0)


def sent(host_request):
    """Return what was sent to a request."""
    return [str(response) for response, _ in host_request.request.sender.sent]


@pytest.fixture
def bench(pb_utils):
    benches = []

    def make(**terms):
        benches.append(Bench(pb_utils, **terms))
        return benches[-1]

    yield make
    for each in benches:
        each.go(100)
        each.backlog.close()


def test_what_comes_to_an_idle_model_is_one_batch(bench, pb_utils):
    """It does not count as waiting, and each response goes through its request's sender."""
    one = bench(max_size=1)
    host_requests = [one.request(name) for name in "abc"]
    assert one.put(*host_requests) == [None] * 3
    one.begun()
    one.go()
    assert comes_true(lambda: all(sent(host_request) for host_request in host_requests))
    assert [sent(host_request) for host_request in host_requests] == [
        ["served a"],
        ["served b"],
        ["served c"],
    ]
    flags = {flag for host_request in host_requests for _, flag in host_request.request.sender.sent}
    assert flags == {pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL}


def test_batches_are_filled_in_order_up_to_their_rows(bench):
    """Whoever has waited longest is first, and nobody is passed by one that would still fit."""
    one = bench(max_rows=4)
    one.put(one.request("first"))
    one.begun()
    for name, rows in (("a", 1), ("b", 2), ("c", 3), ("d", 1), ("e", 4), ("f", 1)):
        assert one.put(one.request(name, rows=rows)) == [None]
    one.go(10)
    assert comes_true(lambda: len(one.batches) == 5)
    assert one.batches == [["first"], ["a", "b"], ["c", "d"], ["e"], ["f"]]


def test_without_a_batch_dimension_each_request_is_a_batch(bench):
    """As in the host."""
    one = bench(max_rows=0)
    one.put(one.request("first", rows=5))
    one.begun()
    for name in "ab":
        one.put(one.request(name, rows=5))
    one.go(10)
    assert comes_true(lambda: one.batches == [["first"], ["a"], ["b"]])


def test_no_more_wait_than_may(bench):
    """The others are refused at once; when some have been taken, there is room again."""
    one = bench(max_rows=2, max_size=3)
    one.put(one.request("first"))
    one.begun()
    refusals = one.put(*[one.request(name) for name in "abcde"])
    assert refusals[:3] == [None] * 3
    assert all("QueueFull: 3 requests wait" in refusal for refusal in refusals[3:])
    one.go()
    one.begun()
    assert one.put(*[one.request(name) for name in "fgh"])[:2] == [None, None]
    one.go(10)
    assert comes_true(lambda: one.batches == [["first"], ["a", "b"], ["c", "f"], ["g"]])


def test_nobody_waits_where_shared_memory_is_full(bench, monkeypatch):
    """Whoever waits lies there, and one who takes the last of it ends the server."""
    from ge_backend.host import backlog

    def full():
        raise OutOfMemory("/dev/shm is full")

    made = bench()
    made.put(made.request("a"))
    made.begun()
    assert made.put(made.request("b")) == [None]
    monkeypatch.setattr(backlog, "check_room_to_wait", full)
    assert made.put(made.request("c")) == ["OutOfMemory: /dev/shm is full"]
    made.go(2)
    made.backlog.close()
    assert made.batches == [["a"], ["b"]]


def test_who_has_waited_too_long_is_told_so_and_not_served(bench):
    """As soon as its time is over, whatever the batch before takes; those with more time stay."""
    one = bench()
    one.put(one.request("first"))
    one.begun()
    late, also_late = one.request("late", in_ns=1), one.request("also", in_ns=1)
    patient, in_time = one.request("patient"), one.request("in time", in_ns=10**12)
    one.put(late, patient, in_time)
    one.put(also_late)
    assert comes_true(lambda: sent(late) and sent(also_late))
    assert len(one.batches) == 1
    assert "had to begin" in sent(late)[0]
    assert "had to begin" in sent(also_late)[0]
    one.go(2)
    assert comes_true(lambda: len(one.batches) == 2)
    assert one.batches[1] == ["patient", "in time"]


def test_who_cannot_begin_in_time_is_refused_at_once(bench):
    """The batch that runs is expected to take longer; without a deadline nobody minds."""
    one = bench()
    one.put(one.request("first"))
    one.begun()
    one.free_at_ns = time.monotonic_ns() + 10**11
    refusals = one.put(
        one.request("hasty", in_ns=10**10), one.request("patient", in_ns=10**12), one.request("any")
    )
    assert "DeadlineExceeded: the batch before this request is expected to end" in refusals[0]
    assert refusals[1:] == [None, None]
    one.free_at_ns = float("inf")
    assert one.put(one.request("hasty", in_ns=10**10)) == [None]


def test_who_has_given_up_is_not_served(bench):
    """The host is asked about those that have waited a while, and not about the others."""
    one = bench()
    one.put(one.request("first"))
    one.begun()
    gone, there = one.request("gone", waited_ns=10**9), one.request("there", waited_ns=10**9)
    quick = one.request("quick", waited_ns=-(10**10))  # so that a slow test does not ask
    for host_request in (gone, quick):
        host_request.request.cancelled = True
    one.put(gone, there, quick)
    one.go(2)
    assert comes_true(lambda: len(one.batches) == 2)
    assert one.batches[1] == ["there", "quick"]
    assert "given up" in sent(gone)[0]


def test_who_has_given_up_keeps_nobody_out(bench):
    """Where no more may wait, those that nobody waits for make room, and are told."""
    one = bench(max_size=2)
    one.put(one.request("first"))
    one.begun()
    gone, there = one.request("gone"), one.request("there")
    assert one.put(gone, there) == [None, None]
    gone.request.cancelled = True
    assert one.put(one.request("next")) == [None]
    assert "given up" in sent(gone)[0]
    assert "QueueFull" in one.put(one.request("too many"))[0]
    one.go(10)
    assert comes_true(lambda: one.batches == [["first"], ["there", "next"]])
    assert one.counted("ge_backlog_requests") == 0


def test_a_long_queue_is_asked_bit_by_bit(bench, monkeypatch):
    """Nobody is let in while the host is asked; in the end all have been."""
    from ge_backend.host import backlog

    monkeypatch.setattr(backlog, "ASK_EVERY_NS", 0)
    one = bench(max_size=250)
    one.put(one.request("first"))
    one.begun()
    waiting = [one.request(str(number)) for number in range(250)]
    asked = []
    for host_request in waiting:
        host_request.request.is_cancelled = lambda host_request=host_request: asked.append(
            host_request
        )
    one.put(*waiting)
    looks = []
    for _ in range(4):
        assert "QueueFull" in one.put(one.request("next"))[0]
        looks.append(len(asked))
    assert looks == [100, 200, 250, 350]
    assert asked == waiting + waiting[:100]
    waiting[240].request.is_cancelled = lambda: True
    refusals = [one.put(one.request("next"))[0] for _ in range(2)]
    assert ("QueueFull" in refusals[0], refusals[1]) == (True, None)
    assert "given up" in sent(waiting[240])[0]


def test_a_batch_of_which_nothing_is_left_is_not_served(bench):
    """The thread goes on to what comes next."""
    one = bench()
    gone, late = one.request("gone", waited_ns=10**9), one.request("late", in_ns=1)
    gone.request.cancelled = True
    one.put(gone)
    assert comes_true(lambda: sent(gone))
    assert one.batches == []
    one.put(one.request("first"))
    one.begun()
    one.put(late)
    one.go()
    assert comes_true(lambda: sent(late))
    one.put(one.request("next"))
    one.begun()
    assert one.batches == [["first"], ["next"]]


def test_an_early_answer_is_not_repeated(bench):
    """A response that was sent while the batch ran comes back as None."""
    one = bench()
    early, other = one.request("early"), one.request("other")
    one.put(early, other)
    one.go()
    assert comes_true(lambda: sent(other) == ["served other"])
    assert sent(early) == []


def test_a_response_that_cannot_be_sent_ends_nothing(bench, caplog):
    """A client may be gone; the next one is served."""
    one = bench()
    broken, well = one.request("broken"), one.request("well")
    broken.request.get_response_sender = lambda: 1 / 0
    one.put(broken)
    one.begun()
    one.put(well)
    one.go(2)
    assert comes_true(lambda: sent(well) == ["served well"])
    assert "a response could not be sent" in caplog.text
    failed = (("status", "INTERNAL"),)
    assert one.recorder.drain()["ge_request_failures_total", failed] == 1


def test_what_waits_is_counted(bench):
    """How many there are now, and for how long they waited when they go."""
    one = bench()
    assert one.recorder.drain()["ge_backlog_requests", ()] == 0  # what a killed one had is gone
    one.put(one.request("first"))
    one.begun()
    one.put(one.request("a", waited_ns=2 * 10**9), one.request("b", waited_ns=3 * 10**9))
    assert one.counted("ge_backlog_requests") == 2
    one.go(2)
    assert comes_true(lambda: len(one.batches) == 2)
    counts = one.recorder.drain()
    assert counts["ge_backlog_requests", ()] == 0
    assert counts["ge_backlog_seconds_total", ()] >= 5


def test_what_waits_is_served_before_the_end(bench):
    """Closing is for when nothing comes any more, not for dropping what is there."""
    one = bench()
    last = one.request("last")
    one.put(one.request("first"))
    one.begun()
    one.put(last)
    one.go(2)
    one.backlog.close()
    assert sent(last) == ["served last"]
