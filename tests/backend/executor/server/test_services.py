"""A service is opened once per key, shared, and closed some time after its last client left.

Connections join it, bring it what is posted, and leave it when they end.
"""

import json
import socket
import threading
from functools import partial
from types import SimpleNamespace

import pytest

from builders.locks import TellingLock
from builders.null_models import comes_true
from fakes.counting_service import KINDS, CountingService
from fakes.null_device import NullDevice
from ge_backend.errors import GraphFailed, ModelError, ProtocolError
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.protocol import wire
from ge_backend.executor.protocol.messages import (
    Failed,
    Inspect,
    Ok,
    OpenService,
    Post,
    Report,
)
from ge_backend.executor.server.executor import Executor


def joined(executor, key, kind="counting"):
    """Return the part of a service that a connection which has joined it has."""
    message = OpenService(id=1, kind=kind, key=key)
    member = executor.services.join(message, connection=None)
    return SimpleNamespace(service=member.service, leave=partial(leave, executor, message, member))


def leave(executor, message, member):
    executor.services.leave(message, member)


def test_who_names_the_same_key_gets_the_same_service(executor):
    """Of one kind and key there is one, of another key another."""
    first, again, other = (joined(executor, key) for key in "aab")
    assert first.service is again.service is not other.service
    for client in (first, again, other):
        client.leave()


def test_it_is_closed_when_its_last_client_has_left_and_not_before(executor):
    """Two shares keep it open until both are given up."""
    first, second = joined(executor, "a"), joined(executor, "a")
    first.leave()
    executor.services.close_idle(now=True)
    assert not first.service.closed
    second.leave()
    executor.services.close_idle()
    assert first.service.closed


def test_it_stays_for_the_linger_time():
    """Who comes back in time finds the same one; memory that is short ends the wait."""
    executor = Executor(NullDevice(), linger_s=60.0, kinds=KINDS)
    first = joined(executor, "a")
    first.leave()
    executor.services.close_idle()
    again = joined(executor, "a")
    assert again.service is first.service
    again.leave()
    assert executor.services.close_idle(now=True) == 1
    assert first.service.closed
    executor.close()


def test_one_that_nobody_uses_makes_room_for_the_next():
    """What it has of the device would be lacking in the other one's cache for as long as that lives."""
    executor = Executor(NullDevice(), linger_s=60.0, kinds=KINDS)
    idle = joined(executor, "a")
    idle.leave()
    used = joined(executor, "b")
    assert idle.service.closed
    other = joined(executor, "c")
    assert not used.service.closed
    for client in (used, other):
        client.leave()
    executor.close()


@pytest.fixture
def closing(executor, monkeypatch):
    """Return a service that is being closed; whoever waits for that lets it be."""
    begun, gate, close = threading.Event(), threading.Event(), CountingService.close
    client = joined(executor, "a")
    service = client.service
    monkeypatch.setattr(service, "close", lambda: (begun.set(), gate.wait(60), close(service)))
    monkeypatch.setattr(executor.services.of("counting"), "_closing", TellingLock(gate))
    client.leave()
    thread = threading.Thread(target=executor.services.close_idle)
    thread.start()
    assert begun.wait(10)
    yield service
    gate.set()
    thread.join()


def test_one_that_is_being_closed_is_waited_for(executor, closing):
    """Its memory would be lacking in the next one's cache."""
    client = joined(executor, "b")
    assert closing.closed
    client.leave()


def test_one_that_is_being_closed_makes_room(executor, closing):
    """Who is short of memory tries again once it is closed."""
    assert executor.services.close_idle(now=True) == 1
    assert closing.closed


def test_who_needs_no_memory_does_not_wait(executor, closing):
    """The loop that takes new connections asks again soon."""
    assert executor.services.close_idle() == 0
    assert not closing.closed


def test_one_that_cannot_be_opened_is_forgotten(executor):
    """Its error is raised each time, and nothing stays."""
    for _ in range(2):
        with pytest.raises(ModelError, match="no such model"):
            joined(executor, "broken")
    assert len(executor.services) == 0


def test_a_kind_that_nobody_knows_is_refused_by_name(executor):
    """The error lists the known kinds."""
    with pytest.raises(ProtocolError, match="'typing' is unknown; known kinds are counting"):
        joined(executor, "a", kind="typing")


def test_it_is_opened_once_however_many_come_at_once(executor):
    """Those who come while it is opened wait for it."""
    got = []
    threads = [threading.Thread(target=lambda: got.append(joined(executor, "a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len({id(client.service) for client in got}) == 1
    assert len(CountingService.opened) == 1
    for client in got:
        client.leave()
    assert comes_true(lambda: len(executor.services) == 1, 0.1)


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
    connection.ask(message, Ok)
    return message.id


def post(connection, number, **asked):
    wire.send(connection.sock, Post(id=number, body=json.dumps(asked).encode()))


def bodies(connection, count):
    return [connection.inbox.receive()[0].body for _ in range(count)]


def test_a_request_is_answered_by_as_many_posts_as_the_service_likes(connection):
    """They come in order, under the number that the service was opened by."""
    number = opened(connection)
    assert CountingService.opened[-1].key == "a"
    post(connection, number, count=3)
    assert bodies(connection, 4) == [b"1", b"2", b"3", b"end"]


def test_several_services_and_questions_share_a_connection(connection):
    """What one says does not come out at another; other messages are answered as ever."""
    first, second = opened(connection, "a"), opened(connection, "b")
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
    opened(connection)
    assert len(CountingService.opened[-1].clients) == 1
    number = opened(other)
    assert len(CountingService.opened[-1].clients) == 2
    post(other, number, count=1)
    assert bodies(other, 2) == [b"1", b"end"]
    assert len(CountingService.opened) == 1
    other.close()


def test_a_service_is_told_when_a_stub_has_left_and_drops_its_steps(executor, connection):
    """Its last step ends; nothing is done for it any more, and the service is closed."""
    number = opened(connection)
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
    number = opened(connection)
    post(connection, number, count=10**6, **{"as": 7})
    post(connection, number, cancel=7)
    while (body := bodies(connection, 1)[0]) != b"cancelled":
        assert body.isdigit()


def test_an_error_of_a_service_is_answered_and_the_connection_goes_on(connection):
    """A post that fails, and one to a service that was never opened, get their errors."""
    number = opened(connection)
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
    number = opened(connection)
    post(connection, number, count=2)
    bodies(connection, 3)
    assert [run.model for run in executor.timeline.history(1, 0).runs] == ["a", "a"]
