"""Real executor processes: started once, shared, gone with the last stub or with the server."""

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from builders.null_models import comes_true, num_ours, run_values, sums, write_null
from ge_backend.errors import (
    ConfigError,
    DeviceUnavailable,
    ModelError,
    ProtocolError,
)
from ge_backend.executor.client import executor_connection
from ge_backend.executor.process import spawn
from ge_backend.executor.process.address import ExecutorAddress
from ge_backend.executor.process.launch import connect

STARTERS = 8

# A stub of its own: connects when told to, prints its executor's pid, stays until told to leave.
STUB = """
import sys
from pathlib import Path
from builders.null_models import address_in
from ge_backend.device.base import GraphSource
from ge_backend.executor.process.launch import connect
from ge_backend.executor.client.session import Session
address = address_in(Path({folder!r}), owner_pid={owner})
sys.stdin.readline()
source = GraphSource.of(Path({model!r}))
session = Session(lambda: connect(address), source, arena_bytes=64, on_restart=lambda: None)
print(session.executor_pid, flush=True)
sys.stdin.readline()
session.close()
"""


@pytest.fixture
def source(tmp_path):
    return write_null(tmp_path / "model.null")


def stub(machine, source, owner=None):
    code = STUB.format(folder=str(machine.folder), model=source.path, owner=owner or os.getpid())
    return machine.python(
        code,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def tell(process):
    process.stdin.write(b"\n")
    process.stdin.flush()


def test_many_starters_at_once_share_one_executor_and_one_graph(machine, source):
    """Whoever comes first starts it; everybody talks to the same process and graph."""
    stubs = [stub(machine, source) for _ in range(STARTERS)]
    for one in stubs:
        tell(one)
    pids = {int(one.stdout.readline()) for one in stubs}
    assert pids == {machine.pid()}
    watcher = machine.session(source)
    report = watcher.inspect()
    assert (report.connections, report.graphs, report.holders) == (STARTERS + 1, 1, STARTERS + 1)
    for one in stubs:
        tell(one)
        assert one.wait(60) == 0
    assert comes_true(lambda: watcher.inspect().connections == 1)
    assert watcher.inspect().holders == 1


def test_starters_inside_one_process_share_it_too(machine, source):
    """Two models of one server, opened one after the other, meet in one executor."""
    first, second = machine.session(source), machine.session(source)
    assert first.executor_pid == second.executor_pid == machine.pid()
    assert sums(run_values(first, 1)) + sums(run_values(second, 2)) == [3, 6]


def test_one_that_cannot_be_watched_while_it_starts_is_ended(machine, source, monkeypatch):
    """It would go on beside the next one, on the same device."""
    with monkeypatch.context() as lacking:
        lacking.setattr(spawn, "Watch", no_thread)
        with pytest.raises(DeviceUnavailable, match="new thread"):
            machine.connect()
    assert machine.executors() == []
    assert machine.session(source).executor_pid == machine.pid()


def no_thread(*_, **__):
    raise RuntimeError("can't start new thread")


def test_it_stays_a_little_and_then_leaves_nothing(machine, source):
    """After its last stub the executor lingers, exits, and removes socket, lock and folder."""
    session = machine.session(source, linger_s=1)
    assert machine.executors()
    begin = time.monotonic()
    session.close()
    assert comes_true(machine.is_empty)
    assert time.monotonic() - begin >= 1


def test_who_comes_within_the_linger_time_finds_the_graph_loaded(machine, source):
    """What `auto_complete_config` loaded is still there for the instance that comes next."""
    first = machine.session(source, linger_s=60)
    pid, graph = machine.pid(), first._loaded.graph
    first.close()
    time.sleep(0.3)
    second = machine.session(source, linger_s=60)
    assert (machine.pid(), second._loaded.graph) == (pid, graph)
    machine.kill(signal.SIGTERM)


def test_stubs_that_come_and_go_at_once_never_meet_a_closed_door(machine, source):
    """With no linger time every connection races with an executor that is leaving, and succeeds."""
    for value in range(12):
        session = machine.session(source, linger_s=0)
        assert sums(run_values(session, value)) == [3.0 * value]
        session.close()
        time.sleep(0.05 * (value % 6))
    assert machine.restarts == 0


def test_it_ends_with_its_owner_whatever_it_does(machine, tmp_path):
    """When the server dies, an executor in the middle of a long run is gone at once."""
    owner = machine.spawn("sleep", "600")
    slow = write_null(tmp_path / "slow.null", cost_ms={"*": 120_000})
    runner = stub_running(machine, slow, owner.pid)
    owner.send_signal(signal.SIGKILL)
    assert comes_true(lambda: not machine.executors())
    runner.wait(60)
    assert comes_true(machine.is_empty)


def test_it_sees_off_a_stub_that_its_owner_was_starting(machine, source, tmp_path):
    """A stub that has not connected yet may wait for the dead server's lock for ever, too."""
    owner = machine.spawn("sleep", "600")
    machine.session(source, owner_pid=owner.pid)
    program = tmp_path / "triton_python_backend_stub"
    shutil.copy("/bin/sh", program)
    line = f"sleep 600; : /models/m/1/model.py {tmp_path.name}"
    words = [program, "-c", line, "1048576", "1048576"]
    starting = machine.spawn(*words, str(owner.pid))
    other = machine.spawn(*words, str(os.getpid()))
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert starting.wait(20) == -signal.SIGKILL
    assert other.poll() is None


def test_it_ends_with_its_owner_where_it_can_open_no_more_files(machine, source):
    """Its lock stays behind then, and the folder with it."""
    owner = machine.spawn("sleep", "600")
    machine.session(source, owner_pid=owner.pid)
    resource.prlimit(machine.pid(), resource.RLIMIT_NOFILE, (4, 4))  # its output, and one socket
    owner.send_signal(signal.SIGKILL)
    assert comes_true(lambda: not machine.executors())
    shutil.rmtree(machine.folder)


def stub_running(machine, source, owner):
    """Return a stub whose executor is busy with a run."""
    code = STUB.format(folder=str(machine.folder), model=source.path, owner=owner)
    code = code.replace(
        "sys.stdin.readline()\nsession.close()",
        "from builders.null_models import run_values\nrun_values(session, 1)",
    )
    process = machine.python(
        code,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    tell(process)
    process.stdout.readline()
    time.sleep(0.3)
    return process


def test_it_does_not_start_for_an_owner_that_is_gone(machine, source):
    """A stub that outlives its server gets an error and leaves no executor."""
    owner = machine.spawn("true")
    owner.wait()
    with pytest.raises(DeviceUnavailable, match="has ended"):
        machine.session(source, owner_pid=owner.pid)
    assert machine.is_empty()


def test_servers_that_share_a_folder_have_executors_of_their_own(machine, source):
    """The end of one server does not take another's executor with it."""
    other = machine.spawn("sleep", "600")
    mine, theirs = machine.session(source), machine.session(source, owner_pid=other.pid)
    assert mine.executor_pid != theirs.executor_pid
    other.kill()
    assert comes_true(lambda: len(machine.executors()) == 1)
    assert sums(run_values(mine, 1)) == [3]
    assert machine.restarts == 0


def test_a_stub_that_is_killed_gives_back_what_it_held(machine, source):
    """The kernel closes a dead stub's connection, and the executor releases its graph."""
    watcher = machine.session(source)
    other = stub(machine, source)
    tell(other)
    other.stdout.readline()
    assert watcher.inspect().holders == 2
    other.kill()
    assert comes_true(lambda: watcher.inspect().holders == 1)


@pytest.mark.parametrize("kind", ["socket", "file"])
def test_something_stale_at_the_address_does_not_keep_it_from_starting(machine, source, kind):
    """What a server that was killed left in the folder is replaced."""
    machine.folder.mkdir(mode=0o700)
    if kind == "socket":
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
            dead.bind(str(machine.address().socket))
    else:
        machine.address().socket.touch()
    assert sums(run_values(machine.session(source), 1)) == [3]


def test_a_starter_that_dies_leaves_one_executor(machine, source):
    """The lock stays with the executor that is being started, so nobody starts a second one."""
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from builders.null_models import address_in\n"
        "from ge_backend.executor.process import spawn\n"
        "from ge_backend.executor.process.lock import address_lock\n"
        f"address = address_in(Path({str(machine.folder)!r}), owner_pid={os.getpid()})\n"
        "with address_lock(address.socket) as lock:\n"
        "    reading, writing = os.pipe()\n"
        "    spawn.spawn(address, ready=writing, lock=lock)\n"
        "    os._exit(0)\n"
    )
    starter = machine.python(code, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    starter.wait(60)
    session = machine.session(source)
    assert session.executor_pid == machine.pid()
    assert sums(run_values(session, 1)) == [3]


def test_sigterm_ends_it_when_its_last_stub_has_left(machine, tmp_path):
    """A service manager sends it to all processes at once, while the server still answers."""
    slow = write_null(tmp_path / "slow.null", cost_ms={"*": 500.0})
    session = machine.session(slow, linger_s=60)
    first = machine.pid()
    timer = threading.Timer(0.25, machine.kill, (signal.SIGTERM,))
    timer.start()
    assert sums(run_values(session, 1)) == [3]
    timer.join()
    assert sums(run_values(session, 2)) == [6]
    assert (machine.pid(), machine.restarts) == (first, 0)
    session.close()
    assert comes_true(machine.is_empty)


def test_an_interrupt_from_the_terminal_is_the_servers_business(machine, source):
    """^C does not end the executor: the server may still be answering requests."""
    session = machine.session(source)
    pid = machine.pid()
    machine.kill(signal.SIGINT)
    time.sleep(0.2)
    assert os.getpgid(pid) == pid != os.getpgrp()
    assert sums(run_values(session, 1)) == [3]
    assert machine.pid() == pid


def test_nobody_else_can_reach_the_socket(machine, source):
    """Folder and lock are this user's alone."""
    machine.session(source)
    assert machine.folder.stat().st_mode & 0o777 == 0o700
    (lock,) = machine.folder.glob("*.lock")
    assert lock.stat().st_mode & 0o777 == 0o600


def test_an_executor_of_another_user_is_refused(machine, source, monkeypatch):
    """A stub does not show its tensors to a process of another user."""
    machine.session(source)
    before = num_ours()
    uid = os.getuid()
    monkeypatch.setattr(executor_connection, "peer_uid", lambda _: uid + 1)
    with pytest.raises(DeviceUnavailable, match=f"user {uid + 1}"):
        machine.connect()
    assert comes_true(lambda: num_ours() <= before)


def test_a_stub_of_another_version_is_told_what_to_do(machine, source, monkeypatch):
    """Two installations under one server do not misunderstand each other."""
    machine.session(source)
    monkeypatch.setattr(executor_connection, "VERSION", 999)
    with pytest.raises(ProtocolError, match="restart the server"):
        machine.connect()


def test_a_malformed_message_ends_one_connection_and_nothing_else(machine, source):
    """Rubbish from one stub costs the others nothing."""
    session = machine.session(source)
    pid = machine.pid()
    for block in (b"rubbish", b"[" * 100_000, b'{"type":"Load","id":1,"source":7}'):
        bad = machine.connect()
        bad.sock.send(block)
        answer, _ = bad.inbox.receive()
        assert answer.error == "ProtocolError"
        bad.close()
    assert sums(run_values(session, 1)) == [3]
    assert machine.pid() == pid


def test_a_device_that_is_not_there_is_named(machine, capfd):
    """The device's own error reaches the stub, and nothing stays of the executor."""
    address = ExecutorAddress(
        device="abacus",
        directory=machine.folder,
        owner_pid=os.getpid(),
        python=sys.executable,
        library_path="",
    )
    with pytest.raises(DeviceUnavailable, match="'abacus' is unknown"):
        connect(address)
    assert comes_true(machine.is_empty)
    assert "Traceback" not in capfd.readouterr().err


def test_a_model_that_does_not_load_is_named_and_holds_nothing(machine, source, tmp_path):
    """A corrupt file is the stub's error; the executor goes on with what it has."""
    session = machine.session(source)
    (tmp_path / "bad.null").write_text("{")
    bad = type(source).of(tmp_path / "bad.null")
    before = num_ours()
    with pytest.raises(ModelError, match="JSON"):
        machine.session(bad)
    assert comes_true(lambda: num_ours() <= before)
    assert session.inspect().graphs == 1


def test_a_folder_that_is_too_deep_is_refused(machine, tmp_path):
    """Beyond the system's limit for socket addresses the setting to change is named."""
    address = ExecutorAddress(
        device="null",
        directory=tmp_path / ("d" * 120),
        owner_pid=os.getpid(),
        python=sys.executable,
        library_path="",
    )
    with pytest.raises(ConfigError, match="GE_RUNTIME_DIR"):
        connect(address)


def test_a_relative_folder_works(machine, source, monkeypatch):
    """A folder given relative to where the server runs is found by the executor too."""
    monkeypatch.chdir(machine.folder.parent)
    machine.folder = machine.folder.relative_to(machine.folder.parent)
    session = machine.session(source)
    assert sums(run_values(session, 1)) == [3]
    machine.folder = machine.folder.absolute()


def test_modules_in_the_working_directory_are_not_imported(machine, source, tmp_path, monkeypatch):
    """A file named like a module of ours, where the server happens to run, does nothing."""
    monkeypatch.chdir(tmp_path)
    for name in ("json.py", "numpy.py", "argparse.py"):
        (tmp_path / name).write_text("raise SystemExit('hijacked')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert sums(run_values(machine.session(source), 1)) == [3]


def test_a_quiet_life_is_not_logged(machine, source, capfd):
    """Starting, serving and leaving write nothing into the server's log."""
    session = machine.session(source)
    run_values(session, *range(20))
    session.close()
    assert comes_true(machine.is_empty)
    assert capfd.readouterr().err == ""


def test_thousands_of_runs_leak_nothing_on_either_side(machine, source):
    """Descriptors and memory of both processes are the same after many runs as before."""
    session = machine.session(source)
    executor = psutil.Process(machine.pid())

    def state():
        return executor.num_fds(), num_ours()

    def rounds(count):
        for _ in range(count):
            run_values(session, *range(8))

    rounds(50)
    before, memory = state(), executor.memory_info().rss
    rounds(400)
    for _ in range(50):
        machine.connect().close()
        session.inspect()
    assert comes_true(lambda: state() == before)
    assert executor.memory_info().rss - memory < 4 << 20


def test_arenas_that_grew_are_unmapped_in_the_executor(machine, source):
    """Growing again and again leaves one arena mapped, not all of them."""
    session = machine.session(source)
    executor = psutil.Process(machine.pid())
    before = executor.num_fds()
    for bits in range(13, 20):
        session.reserve(1 << bits)
        assert sums(run_values(session, 1)) == [3]
    assert comes_true(lambda: executor.num_fds() == before)


def test_the_listening_socket_does_not_answer_other_kinds(machine, source):
    """A stream client cannot connect, so half a message is never read."""
    machine.session(source)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream, pytest.raises(OSError):
        stream.connect(str(machine.address().socket))


def test_what_ends_with_its_server_hands_no_file_on():
    """Whatever a driver has opened, and lets its successor inherit, would keep the device's memory."""
    code = (
        "import os\n"
        "from ge_backend.executor.process.main import _keep_from_successor\n"
        "opened = os.open('/dev/zero', os.O_RDONLY)\n"
        "os.set_inheritable(opened, True)\n"
        "_keep_from_successor()\n"
        "os.execv('/bin/sh', ['sh', '-c', 'readlink /proc/$$/fd/*; true'])\n"
    )
    told = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60)
    assert "/dev/zero" not in told
    assert "pipe:" in told


def test_an_executor_that_is_asked_nothing_hardly_wakes_up(machine, source):
    """It accepts, beats and looks at its memory about once a second each; five times that before."""
    session = machine.session(source)
    assert sums(run_values(session, 1)) == [3]
    time.sleep(2)
    before = wake_ups(machine.pid())
    time.sleep(5)
    assert wake_ups(machine.pid()) - before <= 20


def wake_ups(pid):
    """Return how often a process's threads have waited for something so far."""
    texts = [task.joinpath("status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for text in texts)
