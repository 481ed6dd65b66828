"""A connection opens services, brings them what is posted, and leaves them when it ends."""

import json
import socket

import pytest

from builders.null_models import comes_true
from fakes.counting_service import CountingService
from ge_backend.errors import GraphFailed, ModelError, ProtocolError
from ge_backend.executor.client.link import Link
from ge_backend.executor.protocol import wire
from ge_backend.executor.protocol.messages import (
    Failed,
    Inspect,
    OpenService,
    Post,
    Report,
    ServiceOpened,
)


def dial(executor):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    executor.accept(theirs)
    return Link(ours)


@pytest.fixture
def link(executor):
    link = dial(executor)
    yield link
    link.close()


def opened(link, key="a"):
    message = OpenService(id=link.next_id(), kind="counting", key=key)
    return message.id, link.ask(message, ServiceOpened).spec


def post(link, number, **asked):
    wire.send(link.sock, Post(id=number, body=json.dumps(asked).encode()))


def bodies(link, count):
    return [link.inbox.receive()[0].body for _ in range(count)]


def test_a_request_is_answered_by_as_many_posts_as_the_service_likes(link):
    """They come in order, under the number that the service was opened by."""
    number, told = opened(link)
    assert told == "a for 1"
    post(link, number, count=3)
    assert bodies(link, 4) == [b"1", b"2", b"3", b"end"]


def test_several_services_and_questions_share_a_connection(link):
    """What one says does not come out at another; other messages are answered as ever."""
    first, second = opened(link, "a")[0], opened(link, "b")[0]
    post(link, second, count=1)
    assert [link.inbox.receive()[0] for _ in range(2)] == [
        Post(id=second, body=b"1"),
        Post(id=second, body=b"end"),
    ]
    post(link, first, count=0)
    assert link.inbox.receive()[0].id == first
    link.inbox.receive()
    assert link.ask(Inspect(id=link.next_id()), Report).connections == 1


def test_two_connections_share_one_service(executor, link):
    """Each gets its own answers."""
    other = dial(executor)
    assert opened(link)[1] == "a for 1"
    number, told = opened(other)
    assert told == "a for 2"
    post(other, number, count=1)
    assert bodies(other, 2) == [b"1", b"end"]
    assert len(CountingService.opened) == 1
    other.close()


def test_a_service_is_told_when_a_stub_has_left_and_drops_its_steps(executor, link):
    """Its last step ends; nothing is done for it any more, and the service is closed."""
    number, _ = opened(link)
    post(link, number, count=10**6)
    assert bodies(link, 1) == [b"1"]
    (service,) = CountingService.opened
    link.close()
    assert comes_true(lambda: service.left == service.clients)
    assert comes_true(lambda: len(executor.lanes) == 0)
    executor.services.close_idle()
    assert service.closed


def test_what_was_asked_can_be_cancelled(link):
    """By a number of the client's own, in a message of the service's own."""
    number, _ = opened(link)
    post(link, number, count=10**6, **{"as": 7})
    post(link, number, cancel=7)
    while (body := bodies(link, 1)[0]) != b"cancelled":
        assert body.isdigit()


def test_an_error_of_a_service_is_answered_and_the_connection_goes_on(link):
    """A post that fails, and one to a service that was never opened, get their errors."""
    number, _ = opened(link)
    post(link, number, fail="bad")
    failed = link.inbox.receive()[0]
    assert (failed.id, failed.error, failed.message) == (number, GraphFailed.__name__, "bad")
    wire.send(link.sock, Post(id=number, body=b"not json"))
    assert isinstance(link.inbox.receive()[0], Failed)
    post(link, 99, count=1)
    assert link.inbox.receive()[0].error == ProtocolError.__name__
    post(link, number, count=0)
    assert bodies(link, 2) == [b"1", b"end"]


def test_a_client_that_is_refused_holds_nothing(executor, link):
    """Its error comes, and the service is closed if it has no other."""
    with pytest.raises(ModelError, match="refused"):
        opened(link, "unwanted")
    executor.services.close_idle()
    assert len(executor.services) == 0


def test_the_steps_of_a_service_are_in_the_timeline(executor, link):
    """Each under the service's own words."""
    number, _ = opened(link)
    post(link, number, count=2)
    bodies(link, 3)
    assert [run.model for run in executor.timeline.history(1, 0).runs] == ["a", "a"]
