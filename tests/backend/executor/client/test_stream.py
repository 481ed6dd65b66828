"""A stream gives what a service posts to its taker, and says when it is over."""

import json
import queue
import socket
import threading

import pytest

from builders.null_models import comes_true
from fakes.counting_service import CountingService
from ge_backend.errors import (
    DeviceUnavailable,
    ExecutorLost,
    GraphFailed,
    ModelError,
    ProtocolError,
)
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.client.stream import ServiceStream
from ge_backend.executor.protocol.wire import MAX_MESSAGE_BYTES


class Taker:
    """A stream and what came out of it."""

    def __init__(self, executor, key="a"):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        executor.accept(theirs)
        self.connection = ExecutorConnection(ours)
        self.taken, self.ends = queue.SimpleQueue(), queue.SimpleQueue()
        self.stream = ServiceStream(
            self.connection,
            kind="counting",
            key=key,
            take=self.taken.put,
            ended=self.ends.put,
        )

    def ask(self, **asked):
        self.stream.post(json.dumps(asked).encode())

    def take(self, count):
        return [self.taken.get(timeout=20) for _ in range(count)]


def test_what_is_posted_is_taken_in_order(executor):
    """Several threads may post at once; each request is answered to its end."""
    taker = Taker(executor)
    assert CountingService.opened[-1].key == "a"
    threads = [threading.Thread(target=taker.ask, kwargs={"count": 2}) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(taker.take(12)) == sorted([b"1", b"2", b"end"] * 4)
    taker.stream.close()
    assert taker.ends.empty()


def test_a_lost_executor_ends_it_once(executor):
    """The taker is told why, and what is posted then raises the same."""
    taker = Taker(executor)
    taker.connection.shut()
    assert isinstance(taker.ends.get(timeout=20), ExecutorLost)
    with pytest.raises(ExecutorLost):
        taker.ask(count=1)
    taker.stream.close()
    assert taker.ends.empty()


def test_an_error_of_the_service_ends_it(executor):
    """What the service could not even read is nothing that one request could be told."""
    taker = Taker(executor)
    taker.ask(fail="bad")
    assert isinstance(taker.ends.get(timeout=20), GraphFailed)
    taker.stream.close()


def test_one_that_cannot_be_opened_leaves_nothing_behind(executor):
    """Its error is raised, and the connection is closed."""
    with pytest.raises(ModelError, match="no such model"):
        Taker(executor, key="broken")
    assert comes_true(lambda: executor.num_connections == 0)


def no_thread(monkeypatch, name):
    """Let no thread of this name be started."""
    start = threading.Thread.start

    def limited(self):
        if self.name.startswith(name):
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)


@pytest.mark.parametrize("name", ["read counting", "write counting"])
def test_one_that_gets_no_threads_leaves_nothing_behind(executor, monkeypatch, name):
    """Neither the connection nor the thread that could be started."""
    before = set(threading.enumerate())
    no_thread(monkeypatch, name)
    with pytest.raises(DeviceUnavailable, match="no thread can be started for what counting says"):
        Taker(executor)
    assert comes_true(lambda: executor.num_connections == 0)
    assert comes_true(lambda: set(threading.enumerate()) <= before)


@pytest.fixture
def held(monkeypatch):
    """A gate: until it is open the executor reads nothing further; and the numbers that it read."""
    gate, numbers, receive = threading.Event(), [], CountingService.receive

    def late(self, client, body):
        gate.wait(20)
        numbers.append(json.loads(body)["number"])
        receive(self, client, body)

    monkeypatch.setattr(CountingService, "receive", late)
    yield gate, numbers
    gate.set()


def ask_often(taker, count):
    """Post more than the way to the service has room for."""
    for number in range(count):
        taker.ask(count=1, number=number, text="x" * 2000)


def test_who_posts_waits_for_nobody(executor, held):
    """While the service takes nothing what is posted waits; then all of it comes, in its order."""
    gate, numbers = held
    taker = Taker(executor)
    ask_often(taker, 1000)
    assert taker.taken.empty()
    gate.set()
    taker.take(2000)
    assert numbers == list(range(1000))
    taker.stream.close()


@pytest.mark.parametrize("way", ["leave", "lose"])
def test_what_could_not_be_sent_keeps_nobody(executor, held, way):
    """It is dropped with the stream, as what the service had taken already."""
    taker = Taker(executor)
    ask_often(taker, 1000)
    if way == "lose":
        taker.connection.shut()
        assert isinstance(taker.ends.get(timeout=20), ExecutorLost)
    taker.stream.close()
    with pytest.raises(ExecutorLost):
        taker.ask(count=1)


def test_what_is_too_long_is_refused_also_where_it_would_wait(executor, held):
    """By whoever posts it; the stream goes on."""
    gate, numbers = held
    taker = Taker(executor)
    ask_often(taker, 1000)
    with pytest.raises(ProtocolError, match="fit"):
        taker.stream.post(b"x" * MAX_MESSAGE_BYTES)
    gate.set()
    taker.take(2000)
    assert len(numbers) == 1000
    taker.stream.close()
