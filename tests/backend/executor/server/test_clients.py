"""A connection opens services, brings them what is posted, and leaves them when it ends."""

import json
import socket

import pytest

from builders.null_models import comes_true
from fakes.counting_service import CountingService
from ge_backend.errors import GraphFailed, ModelError, ProtocolError
from ge_backend.executor.client.executor_connection import ExecutorConnection
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
    return ExecutorConnection(ours)


@pytest.fixture
def connection(executor):
    connection = dial(executor)
    yield connection
    connection.close()


def opened(connection, key="a"):
    message = OpenService(id=connection.next_id(), kind="counting", key=key)
    return message.id, connection.ask(message, ServiceOpened).spec


def post(connection, number, **asked):
    wire.send(connection.sock, Post(id=number, body=json.dumps(asked).encode()))


def bodies(connection, count):
    return [connection.inbox.receive()[0].body for _ in range(count)]


def test_a_request_is_answered_by_as_many_posts_as_the_service_likes(connection):
    """They come in order, under the number that the service was opened by."""
    number, told = opened(connection)
    assert told == "a for 1"
    post(connection, number, count=3)
    assert bodies(connection, 4) == [b"1", b"2", b"3", b"end"]


def test_several_services_and_questions_share_a_connection(connection):
    """What one says does not come out at another; other messages are answered as ever."""
    first, second = opened(connection, "a")[0], opened(connection, "b")[0]
    post(connection, second, count=1)
    assert [connection.inbox.receive()[0] for _ in range(2)] == [
        Post(id=second, body=b"1"),
        Post(id=second, body=b"end"),
    ]
    post(connection, first, count=0)
    assert connection.inbox.receive()[0].id == first
    connection.inbox.receive()
    assert connection.ask(Inspect(id=connection.next_id()), Report).connections == 1


def test_two_connections_share_one_service(executor, connection):
    """Each gets its own answers."""
    other = dial(executor)
    assert opened(connection)[1] == "a for 1"
    number, told = opened(other)
    assert told == "a for 2"
    post(other, number, count=1)
    assert bodies(other, 2) == [b"1", b"end"]
    assert len(CountingService.opened) == 1
    other.close()


def test_a_service_is_told_when_a_stub_has_left_and_drops_its_steps(executor, connection):
    """Its last step ends; nothing is done for it any more, and the service is closed."""
    number, _ = opened(connection)
    post(connection, number, count=10**6)
    assert bodies(connection, 1) == [b"1"]
    (service,) = CountingService.opened
    connection.close()
    assert comes_true(lambda: service.left == service.clients)
    assert comes_true(lambda: len(executor.lanes) == 0)
    executor.services.close_idle()
    assert service.closed


def test_what_was_asked_can_be_cancelled(connection):
    """By a number of the client's own, in a message of the service's own."""
    number, _ = opened(connection)
    post(connection, number, count=10**6, **{"as": 7})
    post(connection, number, cancel=7)
    while (body := bodies(connection, 1)[0]) != b"cancelled":
        assert body.isdigit()


def test_an_error_of_a_service_is_answered_and_the_connection_goes_on(connection):
    """A post that fails, and one to a service that was never opened, get their errors."""
    number, _ = opened(connection)
    post(connection, number, fail="bad")
    failed = connection.inbox.receive()[0]
    assert (failed.id, failed.error, failed.message) == (number, GraphFailed.__name__, "bad")
    wire.send(connection.sock, Post(id=number, body=b"not json"))
    assert isinstance(connection.inbox.receive()[0], Failed)
    post(connection, 99, count=1)
    assert connection.inbox.receive()[0].error == ProtocolError.__name__
    post(connection, number, count=0)
    assert bodies(connection, 2) == [b"1", b"end"]


def test_a_client_that_is_refused_holds_nothing(executor, connection):
    """Its error comes, and the service is closed if it has no other."""
    with pytest.raises(ModelError, match="refused"):
        opened(connection, "unwanted")
    executor.services.close_idle()
    assert len(executor.services) == 0


def test_the_steps_of_a_service_are_in_the_timeline(executor, connection):
    """Each under the service's own words."""
    number, _ = opened(connection)
    post(connection, number, count=2)
    bodies(connection, 3)
    assert [run.model for run in executor.timeline.history(1, 0).runs] == ["a", "a"]
