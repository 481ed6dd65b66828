"""The spare executor: it stands by without a device, and becomes the executor when that dies."""

import contextlib
import os
import signal
import subprocess
import threading
import time

import psutil
import pytest

from builders.null_models import comes_true, interpreter, run_values, sums, write_null
from fakes.null_device import PYTHON
from ge_backend.errors import DeviceUnavailable
from ge_backend.executor.process import spare as spare_module
from ge_backend.executor.process import spawn
from ge_backend.executor.process.spare import keep_spare, spare_path

SPARE = {"spare_after_s": 0.0, "linger_s": 1.0}


@pytest.fixture
def source(tmp_path):
    return write_null(tmp_path / "model.null")


def standing_by(machine):
    """Wait for the one spare and return its pid."""
    assert comes_true(lambda: list(machine.folder.glob("*.spare")) and len(machine.spares()) == 1)
    (process,) = machine.spares()
    return process.pid


def test_the_spare_becomes_the_executor(machine, source):
    """A kill costs one restart and no new process; then there is another spare."""
    session = machine.session(source, **SPARE)
    spare = standing_by(machine)
    assert session.executor_pid != spare
    os.kill(session.executor_pid, signal.SIGKILL)
    assert sums(run_values(session, 1, 2)) == [3, 6]
    assert (session.executor_pid, machine.restarts) == (spare, 1)
    assert comes_true(lambda: len(machine.executors()) == 2)
    assert comes_true(lambda: list(machine.folder.glob("*.spare")))


def test_one_that_cannot_be_watched_as_it_becomes_the_executor_is_ended(
    machine, source, monkeypatch
):
    """As a process that is started would be; the next one is alone on the device."""
    session = machine.session(source, **SPARE)
    spare = standing_by(machine)
    os.kill(session.executor_pid, signal.SIGKILL)
    assert comes_true(lambda: [process.pid for process in machine.executors()] == [spare])
    with monkeypatch.context() as lacking:
        lacking.setattr(spawn, "Watch", no_thread)
        with pytest.raises(DeviceUnavailable, match="new thread"):
            machine.connect()
    assert machine.executors() == []
    assert sums(run_values(session, 1)) == [3]


def no_thread(*_, **__):
    raise RuntimeError("can't start new thread")


def test_kills_one_after_the_other_are_survived(machine, source):
    """Whether a spare is there yet, or still starting, or was killed too."""
    session = machine.session(source, **SPARE)
    for value in range(4):
        for process in machine.executors()[value % 2 :]:
            with contextlib.suppress(psutil.NoSuchProcess):  # a spare ends with whom it stands by
                process.kill()
        assert sums(run_values(session, value)) == [3 * value]


def test_all_stubs_of_one_executor_share_a_spare(machine, source):
    """Whoever comes later tells it what to preload, and starts none of its own."""
    sessions = [machine.session(source, **SPARE) for _ in range(3)]
    spare = standing_by(machine)
    machine.session(source, imports=("colorsys",), **SPARE)
    assert comes_true(lambda: threads("spare") == 0)
    assert [process.pid for process in machine.spares()] == [spare]
    os.kill(sessions[0].executor_pid, signal.SIGKILL)
    assert [sums(run_values(session, 1)) for session in sessions] == [[3]] * 3
    assert {session.executor_pid for session in sessions} == {spare}


def test_what_a_model_needs_is_imported_ahead(machine, source):
    """By the process that waits: it has an engine that the executor beside it never used."""
    pytest.importorskip("onnxruntime")
    session = machine.session(source, imports=("onnxruntime",), **SPARE)
    spare = psutil.Process(standing_by(machine))
    assert comes_true(lambda: has_engine(spare))
    assert not has_engine(psutil.Process(session.executor_pid))


def has_engine(process):
    return any("onnxruntime" in area.path for area in process.memory_maps())


STOPS = f"""
case "$*" in *--spare*) kill -STOP $$;; esac
exec {PYTHON} "$@"
"""
# Listens as a spare, says that it becomes the executor, and stops.
STOPS_LATER = """
import os, signal, socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
sock = listener.accept()[0]
descriptors = socket.recv_fds(sock, 1 << 16, 2)[1]
sock.send(b"accepted")
os.kill(os.getpid(), signal.SIGSTOP)
"""
SOON_S = 25.0  # less than any other limit


def test_a_spare_that_stops_as_it_starts_keeps_nobody_waiting(machine, source, tmp_path):
    """It has the address's lock: the executor is replaced, and retires, all the same."""
    session = machine.session(source, python=interpreter(tmp_path, STOPS), **SPARE)
    assert comes_true(machine.spares)
    os.kill(session.executor_pid, signal.SIGKILL)
    begin = time.monotonic()
    assert sums(run_values(session, 1)) == [3]
    assert time.monotonic() - begin < SOON_S
    assert comes_true(lambda: threads("spare") == 0)
    assert machine.spares() == []


def test_a_spare_that_stops_as_it_becomes_the_executor_is_replaced(machine, source):
    """Opening the device may hang it; who called it starts another."""
    machine.folder.mkdir(mode=0o700)
    path = str(spare_path(machine.address().socket))
    spare = machine.python(STOPS_LATER, path, stdout=subprocess.PIPE)
    with spare.stdout as told:
        assert told.readline() == b"listening\n"
    begin = time.monotonic()
    session = machine.session(source)
    assert sums(run_values(session, 2)) == [6]
    assert time.monotonic() - begin < SOON_S
    assert spare.wait(60) == -signal.SIGKILL


def test_an_executor_that_retires_dismisses_its_spare(machine, source):
    """Nothing is left in the folder, nor any process."""
    session = machine.session(source, **SPARE)
    standing_by(machine)
    session.close()
    assert comes_true(machine.is_empty)


def test_a_spare_ends_with_the_server(machine, source):
    """As every executor does, and its socket with it."""
    owner = machine.python("import time; time.sleep(60)")
    session = machine.session(source, owner_pid=owner.pid, **SPARE)
    standing_by(machine)
    owner.kill()
    owner.wait()
    assert comes_true(lambda: not machine.executors())
    session.close()
    assert comes_true(lambda: not list(machine.folder.glob("*")))


def test_a_server_that_ends_while_a_spare_starts_leaves_nothing(machine, source, monkeypatch):
    """Who starts the spare has the lock then, and executors that end leave it to him."""
    started, go = threading.Event(), threading.Event()
    start = spare_module._started

    def held(*given):
        process = start(*given)
        started.set()
        go.wait(60)
        return process

    monkeypatch.setattr(spare_module, "_started", held)
    owner = machine.python("import time; time.sleep(60)")
    machine.session(source, owner_pid=owner.pid, **SPARE)
    assert started.wait(60)
    owner.kill()
    owner.wait()
    assert comes_true(lambda: not machine.executors())
    go.set()
    assert comes_true(machine.is_empty)


def test_an_executor_that_was_a_spare_retires_in_order(machine, source):
    """It has become one like any other."""
    session = machine.session(source, **SPARE)
    spare = standing_by(machine)
    os.kill(session.executor_pid, signal.SIGKILL)
    assert sums(run_values(session, 1)) == [3]
    assert session.executor_pid == spare
    session.close()
    assert comes_true(machine.is_empty)


def test_without_an_executor_there_is_no_spare(machine):
    """A stub that comes to it late, when the executor has gone, leaves nothing behind."""
    machine.folder.mkdir(mode=0o700)
    keep_spare(machine.address(**SPARE))
    assert machine.is_empty()


def test_without_the_setting_there_is_no_spare(machine, source):
    """The default of an address; `serving/connect.py` asks the machine."""
    machine.session(source)
    assert threads("spare") == 0
    assert machine.spares() == []


def threads(name):
    return [thread.name for thread in threading.enumerate()].count(name)
