"""A link shakes hands, asks, and closes itself when the answers are out of step."""

import os
import socket

import pytest

from builders.null_models import link_to
from ge_backend.errors import DeviceUnavailable, ExecutorLost, ProtocolError
from ge_backend.executor.client import link as link_module
from ge_backend.executor.client.link import Link
from ge_backend.executor.protocol import wire
from ge_backend.executor.protocol.messages import VERSION, Attach, Inspect, Ok, Report, Welcome


@pytest.fixture
def link():
    _, link = link_to()
    yield link
    link.close()


def test_a_link_knows_who_welcomed_it(link):
    """Device, lanes and process are known once hands are shaken."""
    assert (link.welcome.device, link.welcome.lanes, link.welcome.pid) == ("null", 2, os.getpid())


def test_ids_are_never_used_twice(link):
    """Every message of a connection has its own id."""
    assert len({link.next_id() for _ in range(100)}) == 100


def test_an_error_is_raised_as_what_it_was_and_the_link_goes_on(link):
    """What the executor refuses is its error here; the next question is answered."""
    with pytest.raises(ProtocolError, match="0 descriptors"):
        link.ask(Attach(id=link.next_id(), arena=0, nbytes=64), Ok)
    assert link.ask(Inspect(id=link.next_id()), Report).connections == 1


def test_an_answer_that_was_not_taken_puts_the_link_out_of_step(link):
    """A late answer is not mistaken for the next one: the link closes, and is lost from then on."""
    wire.send(link.sock, Inspect(id=link.next_id()))
    with pytest.raises(ProtocolError, match="expected Report to"):
        link.ask(Inspect(id=link.next_id()), Report)
    with pytest.raises(ExecutorLost):
        link.ask(Inspect(id=link.next_id()), Report)


def test_a_failed_handshake_closes_the_socket(monkeypatch):
    """Nothing stays open of a connection that was refused."""
    monkeypatch.setattr(link_module, "peer_uid", lambda _: os.getuid() + 1)
    with pytest.raises(DeviceUnavailable, match="belongs to user"):
        link_to()


def test_an_executor_of_another_container_is_refused(monkeypatch):
    """The kernel has no number here for its process: it could not be watched, nor be ours."""
    monkeypatch.setattr(link_module, "peer_pid", lambda _: 0)
    with pytest.raises(DeviceUnavailable, match="a process of another container"):
        link_to()


def test_a_welcome_without_its_page_is_refused():
    """The one descriptor that belongs to it must have come; the socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wire.send(theirs, Welcome(id=1, version=VERSION, device="x", lanes=1, pid=1))
    with pytest.raises(ProtocolError, match="0 descriptors"):
        Link(ours)
    theirs.close()
    assert ours.fileno() == -1
