"""An executor serves while it is needed, and a little longer."""

import socket
import threading
import time

import pytest

from builders.null_models import comes_true
from fakes.null_device import NullDevice
from ge_backend.device.health import Health
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.protocol.messages import Inspect, Report
from ge_backend.executor.protocol.outstanding import OutstandingView
from ge_backend.executor.server import executor as executor_module
from ge_backend.executor.server.executor import Executor


@pytest.fixture
def address(tmp_path):
    return str(tmp_path / "x.sock")


@pytest.fixture
def listener(address):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        yield listener


def serving(listener, linger_s):
    executor = Executor(NullDevice(), linger_s=linger_s)
    thread = threading.Thread(target=executor.serve, args=(listener,), daemon=True)
    thread.start()
    return executor, thread


def dialled(address):
    """Return a socket that waits to be accepted: who lingers for a moment only finds it there."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(address)
    return sock


def dial(address):
    return ExecutorConnection(dialled(address))


def test_an_executor_that_nobody_needs_stops_after_the_linger_time(listener):
    """Without any connection it waits for one, but not for ever."""
    started = time.monotonic()
    _, thread = serving(listener, 0.3)
    thread.join(20)
    assert not thread.is_alive()
    assert time.monotonic() - started >= 0.3


@pytest.mark.parametrize("connected", [True, False])
def test_an_executor_that_is_to_end_stays_for_its_stubs_alone(listener, address, connected):
    """It does not linger."""
    executor, thread = serving(listener, 600)
    stub = dial(address) if connected else None
    executor.end_when_left()
    if stub is not None:
        stub.ask(Inspect(id=stub.next_id()), Report)
        stub.close()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("linger_s", [0.0, 0.1])
def test_an_executor_stays_while_one_connection_is_left(listener, address, linger_s):
    """The linger time begins when the last stub has left."""
    waiting = dialled(address), dialled(address)
    executor, thread = serving(listener, linger_s)
    first, second = map(ExecutorConnection, waiting)
    first.close()
    assert comes_true(lambda: executor.num_connections == 1)
    time.sleep(0.6)
    assert thread.is_alive()
    assert executor.num_connections == 1
    second.close()
    thread.join(20)
    assert not thread.is_alive()


def test_the_last_stub_that_leaves_ends_the_pause_between_two_looks(listener, address, monkeypatch):
    """A server that stops, and a model that is loaded anew elsewhere, wait for no look."""
    monkeypatch.setattr(executor_module, "IDLE_S", 600.0)
    executor, thread = serving(listener, 0.0)
    stub = dial(address)
    stub.ask(Inspect(id=stub.next_id()), Report)
    assert not comes_true(lambda: not thread.is_alive(), 0.3)
    stub.close()
    thread.join(20)
    assert not thread.is_alive()
    executor.close()


def test_a_failing_accept_does_not_end_the_executor(listener, address, monkeypatch, caplog):
    """When descriptors run out one connection is refused, and the next one is served."""
    executor = Executor(NullDevice(), linger_s=600)
    real, calls = executor.accept, []

    def failing(sock):
        calls.append(sock)
        if len(calls) == 1:
            sock.close()
            raise OSError(24, "Too many open files")
        real(sock)

    monkeypatch.setattr(executor, "accept", failing)
    thread = threading.Thread(target=executor.serve, args=(listener,), daemon=True)
    with dialled(address) as refused:
        waiting = dialled(address)
        thread.start()
        assert refused.recv(1) == b""
    connection = ExecutorConnection(waiting)
    assert connection.welcome.device == "null"
    assert "could not be accepted" in caplog.text
    executor.end_when_left()
    connection.close()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_a_connection_without_a_thread_is_closed_and_forgotten(
    listener, address, monkeypatch, caplog, error
):
    """Whoever was there is served on, the next one is served, and the executor ends in order."""
    waiting = dialled(address)
    executor, thread = serving(listener, 0.3)
    first = ExecutorConnection(waiting)
    with monkeypatch.context() as full:
        full.setattr(threading, "Thread", NoThread.because(error))
        with dialled(address) as refused:
            assert refused.recv(1) == b""
    assert executor.num_connections == 1
    told = f"could not be accepted: {type(error).__name__}: {error}"
    assert comes_true(lambda: told in caplog.text)
    second = dial(address)
    assert first.ask(Inspect(id=first.next_id()), Report).connections == 2
    first.close()
    second.close()
    thread.join(20)
    assert not thread.is_alive()


class NoThread:
    """A thread that cannot be started."""

    @classmethod
    def because(cls, error):
        def make(**_):
            thread = cls()
            thread.error = error
            return thread

        return make

    def start(self):
        raise self.error


class SickDevice(NullDevice):
    """Says that it is abnormal, and counts how often it is asked."""

    def __init__(self):
        super().__init__()
        self.asked = 0

    def health(self):
        self.asked += 1
        return Health(abnormal=1)


def test_the_devices_health_is_asked_now_and_then(listener, monkeypatch):
    """Stubs see it; a device is not asked every time that the pool is shown."""
    monkeypatch.setattr(executor_module, "HEALTH_S", 1000.0)
    device = SickDevice()
    executor = Executor(device, linger_s=3 * executor_module.POLL_S)
    view = OutstandingView(executor.outstanding.descriptor)
    executor.serve(listener)
    assert view.health == Health(abnormal=1)
    assert device.asked == 1
    executor.close()


def test_joining_waits_for_the_last_connection():
    """An inline executor ends when its one connection has ended."""
    executor = Executor(NullDevice(), linger_s=0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    executor.accept(theirs)
    connection = ExecutorConnection(ours)
    thread = threading.Thread(target=executor.join, daemon=True)
    thread.start()
    time.sleep(0.3)
    assert thread.is_alive()
    connection.close()
    thread.join(20)
    assert not thread.is_alive()
