"""Whoever has something to say to a stub waits for nobody, and a stub that reads gets all of it."""

import errno
import os
import socket
import threading

import pytest

from builders.null_models import comes_true, num_descriptors
from ge_backend.errors import ExecutorLost, ProtocolError
from ge_backend.executor.protocol import wire
from ge_backend.executor.protocol.messages import Inspect, Post
from ge_backend.executor.server import outgoing
from ge_backend.executor.server.outgoing import Outgoing

MANY = 3000  # a socket has room for some hundreds


class Peer:
    """A stub that reads when it is told to."""

    def __init__(self, sock):
        self.sock = sock
        self.inbox = wire.Inbox(sock)

    def read(self, count):
        numbers = []
        for _ in range(count):
            message, descriptors = self.inbox.receive()
            for descriptor in descriptors:
                os.close(descriptor)
            numbers.append(message.id)
        return numbers

    def is_dropped(self):
        """Return whether what is read ends some time."""
        try:
            self.read(10 * MANY)
        except ExecutorLost:
            return True
        return False


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    outgoing_, before = Outgoing(ours, 17), threads()
    yield outgoing_, Peer(theirs)
    outgoing_.close()
    theirs.close()
    assert ours.fileno() < 0
    assert comes_true(lambda: threads() <= before)


def threads():
    return set(threading.enumerate())


def say(out, numbers, **how):
    for number in numbers:
        out.send(Inspect(id=number), **how)


def memory():
    return os.memfd_create("spill")


def test_what_fits_is_sent_by_whoever_says_it(ends):
    """No thread is started for it."""
    (out, peer), before = ends, threads()
    for number in range(2 * MANY):
        out.send(Inspect(id=number))
        assert peer.read(1) == [number]
    assert threads() <= before


def test_a_stub_that_reads_late_gets_all_in_order(ends):
    """Its socket holds some hundreds; once it reads again, what is said is sent at once again."""
    (out, peer), before = ends, threads()
    for _ in range(3):
        say(out, range(MANY))
        assert threads() - before
        assert peer.read(MANY) == list(range(MANY))
        assert comes_true(lambda: threads() <= before)
    assert out.open


def test_who_may_wait_says_its_own_behind_all_that_was_said(ends):
    """And sends itself what does not fit, so that a slow stub makes it slow."""
    out, peer = ends
    say(out, range(MANY))
    waiting = threading.Thread(
        target=say, args=(out, range(MANY, 2 * MANY)), kwargs={"wait": True}, daemon=True
    )
    waiting.start()
    assert peer.read(MANY) == list(range(MANY))
    assert peer.read(MANY - 1) == list(range(MANY, 2 * MANY - 1))
    assert peer.read(1) == [2 * MANY - 1]
    waiting.join(20)
    assert not waiting.is_alive()


@pytest.mark.parametrize("wait", [False, True])
def test_what_is_sent_or_is_not_leaves_no_descriptor(ends, monkeypatch, wait):
    """Neither what fits, nor what waits, nor what does not fit into a message, nor what is lost."""
    monkeypatch.setattr(outgoing, "MAX_DESCRIPTORS", MANY)
    (out, peer), before = ends, num_descriptors()
    out.send(Inspect(id=0), (memory(),), wait=wait)
    say(out, range(1, MANY))
    for number in range(20):
        out.send(Inspect(id=MANY + number), (memory(),))
    assert num_descriptors() > before
    assert peer.read(MANY + 20) == list(range(MANY + 20))
    assert comes_true(lambda: num_descriptors() <= before)
    with pytest.raises(ProtocolError):
        out.send(Post(id=1, body=bytes(wire.MAX_MESSAGE_BYTES)), (memory(),), wait=wait)
    say(out, range(MANY))
    out.send(Inspect(id=MANY), (memory(),))
    peer.sock.close()
    out.send(Inspect(id=MANY), (memory(),), wait=wait)
    assert comes_true(lambda: not out.open)
    out.send(Inspect(id=MANY), (memory(),), wait=wait)
    assert comes_true(lambda: num_descriptors() <= before - 1)


@pytest.mark.parametrize("what", ["bytes", "descriptors"])
def test_a_stub_that_leaves_too_much_unread_is_dropped(ends, monkeypatch, caplog, what):
    """It has what its socket held, and then the end; nothing of the rest is kept."""
    monkeypatch.setattr(outgoing, f"MAX_{what.upper()}", 4000 if what == "bytes" else 2)
    (out, peer), before = ends, num_descriptors()
    for number in range(MANY):
        out.send(Inspect(id=number), (memory(),) if what == "descriptors" else ())
    assert not out.open
    assert "process 17 is dropped: it leaves" in caplog.text
    assert peer.is_dropped()
    assert comes_true(lambda: num_descriptors() <= before)


@pytest.mark.parametrize("wait", [False, True])
def test_a_stub_that_takes_nothing_for_too_long_is_dropped(monkeypatch, caplog, wait):
    """However little it leaves unread; whoever waits for it goes on."""
    monkeypatch.setattr(outgoing, "SILENT_S", 0.02)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    out = Outgoing(ours, 17)
    say(out, range(MANY), wait=wait)
    assert comes_true(lambda: not out.open)
    assert "process 17 is dropped: it has taken nothing for 0.02 s" in caplog.text
    assert Peer(theirs).is_dropped()
    out.close()
    theirs.close()


def test_closing_waits_for_no_stub(ends):
    """What was not sent is lost with the connection, and who waits to say something goes on."""
    (out, _), before = ends, threads()
    say(out, range(MANY))
    waiting = threading.Thread(target=say, args=(out, [MANY]), kwargs={"wait": True})
    waiting.start()
    out.close()
    waiting.join(20)
    assert not waiting.is_alive()
    assert comes_true(lambda: threads() <= before)


def test_a_stub_is_dropped_where_no_thread_can_be_started_for_it(ends, monkeypatch, caplog):
    """It could not be told, and would wait for ever."""
    out, peer = ends

    def refused(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        say(out, range(MANY))
    assert not out.open
    assert "can't start new thread" in caplog.text
    assert peer.is_dropped()


def test_a_socket_that_cannot_take_it_is_no_use(ends, monkeypatch, caplog):
    """Whatever the system says: a stub that is there and could not be told is dropped."""
    out, peer = ends

    class Failing:
        def __getattr__(self, name):
            return getattr(out_sock, name)

        def send(self, *_):
            raise OSError(errno.ENOMEM, "no memory")

    out_sock, out._sock = out._sock, Failing()
    out.send(Inspect(id=1))
    assert not out.open
    assert peer.is_dropped()
