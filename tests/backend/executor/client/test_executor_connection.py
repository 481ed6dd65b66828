"""A connection shakes hands, asks, and closes itself when the answers are out of step."""

import os
import socket

import pytest

from builders.null_models import connected_to
from ge_backend.errors import DeviceUnavailable, ExecutorLost, ProtocolError
from ge_backend.executor.client import executor_connection as module
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.protocol import wire
from ge_backend.executor.protocol.messages import VERSION, Attach, Inspect, Ok, Report, Welcome


@pytest.fixture
def connection():
    _, connection = connected_to()
    yield connection
    connection.close()


def test_a_connection_knows_who_welcomed_it(connection):
    """Device, lanes and process are known once hands are shaken."""
    assert (connection.welcome.device, connection.welcome.lanes, connection.welcome.pid) == (
        "null",
        2,
        os.getpid(),
    )


def test_ids_are_never_used_twice(connection):
    """Every message of a connection has its own id."""
    assert len({connection.next_id() for _ in range(100)}) == 100


def test_an_error_is_raised_as_what_it_was_and_the_connection_goes_on(connection):
    """What the executor refuses is its error here; the next question is answered."""
    with pytest.raises(ProtocolError, match="0 descriptors"):
        connection.ask(Attach(id=connection.next_id(), arena=0, nbytes=64), Ok)
    assert connection.ask(Inspect(id=connection.next_id()), Report).connections == 1


def test_an_answer_that_was_not_taken_puts_the_connection_out_of_step(connection):
    """A late answer is not mistaken for the next one: the connection closes, and is lost from then on."""
    wire.send(connection.sock, Inspect(id=connection.next_id()))
    with pytest.raises(ProtocolError, match="expected Report to"):
        connection.ask(Inspect(id=connection.next_id()), Report)
    with pytest.raises(ExecutorLost):
        connection.ask(Inspect(id=connection.next_id()), Report)


def test_a_failed_handshake_closes_the_socket(monkeypatch):
    """Nothing stays open of a connection that was refused."""
    monkeypatch.setattr(module, "peer_uid", lambda _: os.getuid() + 1)
    with pytest.raises(DeviceUnavailable, match="belongs to user"):
        connected_to()


def test_an_executor_of_another_container_is_refused(monkeypatch):
    """The kernel has no number here for its process: it could not be watched, nor be ours."""
    monkeypatch.setattr(module, "peer_pid", lambda _: 0)
    with pytest.raises(DeviceUnavailable, match="a process of another container"):
        connected_to()


def test_a_welcome_without_its_page_is_refused():
    """The one descriptor that belongs to it must have come; the socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wire.send(theirs, Welcome(id=1, version=VERSION, device="x", lanes=1, pid=1))
    with pytest.raises(ProtocolError, match="0 descriptors"):
        ExecutorConnection(ours)
    theirs.close()
    assert ours.fileno() == -1
