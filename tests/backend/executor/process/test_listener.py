"""The listener leaves nothing in the file system, and never what is another's."""

import contextlib
import socket
import subprocess
import sys
import threading

import pytest

from builders.null_models import comes_true
from fakes.null_device import NullDevice
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.process import listener as module
from ge_backend.executor.process.listener import Listener
from ge_backend.executor.process.lock import address_lock, lock_path
from ge_backend.executor.server.executor import Executor


class Device(NullDevice):
    """Counts how often it was given back."""

    closed = 0

    def close(self):
        self.closed += 1


@pytest.fixture
def address(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return folder / "null.sock"


def dial(address):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(str(address))
    return sock


def test_retiring_gives_back_the_device_and_removes_everything(address):
    """Socket, lock and folder are gone when serving ends, and the device is closed once."""
    device, listener = Device(), Listener(address)
    listener.open()
    listener.serve(Executor(device, linger_s=0.1))
    assert not address.parent.exists()
    assert device.closed == 1


def test_a_device_that_cannot_be_given_back_is_left_in_the_end(address, monkeypatch):
    """Until then the lock is held, for which the next executor waits."""
    within, seen = [], []

    @contextlib.contextmanager
    def bound():
        within.append(True)
        yield
        within.pop()

    monkeypatch.setattr(module, "bounded", bound)
    device, listener = Device(), Listener(address)
    device.close = lambda: seen.append(list(within))
    listener.open()
    listener.serve(Executor(device, linger_s=0.1))
    assert (seen, within) == ([[True]], [])


def test_who_knocks_at_the_last_moment_is_still_served(address):
    """A connection that came while the executor made up its mind keeps it going."""
    listener = Listener(address)
    listener.open()
    executor = Executor(Device(), linger_s=0.0)
    serve, knocked = executor.serve, []

    def serve_and_be_late(listener):
        serve(listener)
        if not knocked:
            knocked.append(dial(address))

    executor.serve = serve_and_be_late
    thread = threading.Thread(target=listener.serve, args=(executor,), daemon=True)
    thread.start()
    assert comes_true(lambda: bool(knocked))
    connection = ExecutorConnection(knocked[0])
    assert connection.welcome.device == "null"
    assert thread.is_alive()
    connection.close()
    thread.join(20)
    assert not address.parent.exists()


def test_a_stale_socket_is_replaced(address):
    """What an executor that was killed left behind does not keep the next one from listening."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(address))
    with pytest.raises(ConnectionRefusedError):
        dial(address)
    listener = Listener(address)
    listener.open()
    dial(address).close()
    listener.abandon()


def test_abandoning_removes_everything_at_once(address):
    """Leaving in a hurry leaves nothing behind either."""
    listener = Listener(address)
    listener.open()
    with address_lock(address):
        pass
    listener.abandon()
    assert not address.parent.exists()


def test_abandoning_waits_for_nobody(address):
    """Who holds the lock keeps it: the socket goes, lock and folder stay for the next executor."""
    listener = Listener(address)
    listener.open()
    with address_lock(address):
        listener.abandon()
        assert not address.exists()
        assert lock_path(address).exists()


def test_a_socket_that_became_anothers_stays(address):
    """An executor whose address was taken over does not remove its successor's socket."""
    first, second = Listener(address), Listener(address)
    first.open()
    second.open()
    first.abandon()
    dial(address).close()
    second.abandon()
    assert not address.parent.exists()


def test_a_listener_that_was_never_opened_removes_no_socket(address):
    """An executor that ends before it listens leaves the address alone."""
    other = Listener(address)
    other.open()
    Listener(address).abandon()
    dial(address).close()
    other.abandon()


def test_a_folder_with_other_things_in_it_stays(address):
    """Only an empty folder is removed."""
    (address.parent / "other").touch()
    listener = Listener(address)
    listener.open()
    listener.abandon()
    assert [path.name for path in address.parent.iterdir()] == ["other"]


HANG = """
import ctypes, time
from ge_backend.executor.process.listener import bounded
with bounded({}):
    {}
"""
# A library that keeps the interpreter's lock: no Python thread runs then.
HOLDING = "ctypes.PyDLL(None).sleep(60)"


def ended(code, bound_s=0.3):
    """Return the status and the output of a program; the bound would end this one, too."""
    command = [sys.executable, "-c", HANG.format(bound_s, code)]
    process = subprocess.run(command, capture_output=True, check=False, text=True, timeout=30)
    return process.returncode, process.stderr


def test_what_hangs_ends_and_says_where():
    """Also in a library that lets no thread of Python's run."""
    for code in ("time.sleep(60)", HOLDING):
        status, output = ended(code)
        assert status == 1
        assert "Timeout (0:00:00.3" in output
        assert 'File "<string>", line 5' in output


def test_what_is_done_in_time_goes_on():
    """The bound is gone with the block, however that ends."""
    assert ended("pass\ntime.sleep(1.5)", bound_s=1) == (0, "")
    assert ended("1 / 0", bound_s=10)[1].rstrip().endswith("ZeroDivisionError: division by zero")
