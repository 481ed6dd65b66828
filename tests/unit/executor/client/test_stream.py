"""A stream gives what a service posts to its taker, and says when it is over."""

import json
import queue
import socket
import threading

import pytest

from builders.null_models import comes_true
from ge_backend.errors import ExecutorLost, GraphFailed, ModelError
from ge_backend.executor.client.link import Link
from ge_backend.executor.client.stream import ServiceStream


class Taker:
    """A stream and what came out of it."""

    def __init__(self, executor, key="a"):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        executor.accept(theirs)
        self.link = Link(ours)
        self.taken, self.ends = queue.SimpleQueue(), queue.SimpleQueue()
        self.stream = ServiceStream(
            self.link,
            kind="counting",
            key=key,
            take=self.taken.put,
            ended=self.ends.put,
        )

    def ask(self, **asked):
        self.stream.post(json.dumps(asked).encode())

    def take(self, count):
        return [self.taken.get(timeout=5) for _ in range(count)]


def test_what_is_posted_is_taken_in_order(executor):
    """Several threads may post at once; each request is answered to its end."""
    taker = Taker(executor)
    assert taker.stream.told == "a for 1"
    threads = [threading.Thread(target=taker.ask, kwargs={"count": 2}) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert sorted(taker.take(12)) == sorted([b"1", b"2", b"end"] * 4)
    taker.stream.close()
    assert taker.ends.empty()


def test_a_lost_executor_ends_it_once(executor):
    """The taker is told why, and what is posted then raises the same."""
    taker = Taker(executor)
    taker.link.shut()
    assert isinstance(taker.ends.get(timeout=5), ExecutorLost)
    with pytest.raises(ExecutorLost):
        taker.ask(count=1)
    taker.stream.close()
    assert taker.ends.empty()


def test_an_error_of_the_service_ends_it(executor):
    """What the service could not even read is nothing that one request could be told."""
    taker = Taker(executor)
    taker.ask(fail="bad")
    assert isinstance(taker.ends.get(timeout=5), GraphFailed)
    taker.stream.close()


def test_one_that_cannot_be_opened_leaves_nothing_behind(executor):
    """Its error is raised, and the connection is closed."""
    with pytest.raises(ModelError, match="no such model"):
        Taker(executor, key="broken")
    assert comes_true(lambda: executor.num_connections == 0)
