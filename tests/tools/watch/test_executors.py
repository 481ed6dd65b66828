"""Finding the executors of a server and fetching what they ran."""

import os
import socket
import threading

import pytest

from builders.null_models import write_null
from fakes.null_device import NullDevice
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.process import host_processes
from ge_backend.executor.protocol.messages import Load, Loaded, Prepare, Prepared, PrepareInput
from ge_backend.executor.server.executor import Executor
from ge_tools.watch import executors as module
from ge_tools.watch.executors import ExecutorProcess, RunWatch, find_executors


@pytest.fixture
def url():
    """The metrics of a server that is this process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A function that writes the command line of a process, below a /proc of our own."""
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "self" / "net").symlink_to("/proc/self/net")
    (folder / str(os.getpid())).mkdir()
    (folder / str(os.getpid()) / "fd").symlink_to(f"/proc/{os.getpid()}/fd")
    monkeypatch.setattr(module, "PROC", folder)
    monkeypatch.setattr(host_processes, "PROC", folder)

    def write(pid, *arguments):
        (folder / str(pid)).mkdir(exist_ok=True)
        (folder / str(pid) / "cmdline").write_bytes("\0".join([*arguments, ""]).encode())

    return write


def command(device, owner, path):
    python = ("python", "-m", "ge_backend.executor.process.main")
    return (*python, f"--device={device}", f"--socket={path}", f"--owner={owner}", "--lanes=0")


def test_the_executors_of_the_server_behind_an_address_are_found(url, proc, tmp_path):
    """Of all processes those that are executors, and whose owner listens there."""
    proc(70, *command("npu:0", os.getpid(), tmp_path / "a.sock"))
    proc(71, *command("cpu", os.getpid(), tmp_path / "b.sock"))
    proc(72, *command("cpu", 999_999_999, tmp_path / "c.sock"))
    proc(73, "python", "-m", "http.server")
    proc(74, "grep", "ge_backend.executor.process.main")
    proc(75, "grep", *command("cpu", "me", "x"))
    found = find_executors(url)
    assert [(e.pid, e.device) for e in found] == [(71, "cpu"), (70, "npu:0")]
    assert found[0].socket == str(tmp_path / "b.sock")
    assert found[0].owner_pid == os.getpid()


@pytest.mark.parametrize(
    "elsewhere", ["http://192.0.2.1:{port}/metrics", "http://127.0.0.1:1/metrics", "nonsense", ""]
)
def test_a_server_elsewhere_has_no_executors_here(url, proc, tmp_path, elsewhere):
    """Another machine's port 8002 is not ours, and nobody listens at port 1."""
    proc(71, *command("cpu", os.getpid(), tmp_path / "b.sock"))
    port = url.split(":")[2].split("/")[0]
    assert find_executors(elsewhere.format(port=port)) == []


class Running:
    """An executor in this process that others reach at a socket."""

    def __init__(self, folder, pid):
        self.process = ExecutorProcess(
            pid=pid, device="null", owner_pid=os.getpid(), socket=str(folder / f"{pid}.sock")
        )
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.process.socket)
        self.listener.listen()
        self.executor = Executor(NullDevice(), linger_s=60.0)
        threading.Thread(target=self._accept, daemon=True).start()
        self.connection = self.dial()
        load = Load(id=1, source=write_null(folder / f"{pid}.null"), served_as=f"model-{pid}")
        self.graph = self.connection.ask(load, Loaded).graph

    def _accept(self):
        while True:
            try:
                self.executor.accept(self.listener.accept()[0])
            except OSError:
                return

    def dial(self):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(self.process.socket)
        return ExecutorConnection(sock)

    def run(self):
        given = (PrepareInput(name="x", dtype="FP32", shape=(2, 2), fill=1.0),)
        message = Prepare(id=self.connection.next_id(), graph=self.graph, inputs=given, repeats=0)
        self.connection.ask(message, Prepared)

    def close(self):
        self.connection.close()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A function that starts an executor, which is found from then on."""
    running = []
    found = lambda url: [executor.process for executor in running]  # noqa: E731
    monkeypatch.setattr(module, "find_executors", found)

    def begin(pid):
        running.append(Running(tmp_path, pid))
        return running[-1]

    yield begin
    for executor in running:
        executor.close()


def test_runs_are_those_since_it_began_to_look(start):
    """What an executor did before is not fetched; each run is fetched once."""
    executor = start(1)
    executor.run()
    watch = RunWatch("url")
    executor.run()
    assert watch.look() == 1
    executor.run()
    assert watch.look() == 2
    (device,) = watch.close()
    assert [run.model for run in device.runs] == ["model-1", "model-1"]
    assert (device.device, device.pid, device.missed) == ("null", 1, 0)


def test_an_executor_that_starts_later_is_watched_too(start):
    """All that it ran, since it ran nothing before."""
    watch = RunWatch("url")
    executor = start(1)
    executor.run()
    assert watch.look() == 1
    assert [device.pid for device in watch.close()] == [1]


def test_an_executor_that_dies_keeps_what_was_fetched(start):
    """The others are watched on."""
    first = start(1)
    watch = RunWatch("url")
    first.run()
    assert watch.look() == 1
    watch._watched[first.process.socket].connection.sock.shutdown(socket.SHUT_RDWR)
    second = start(2)
    second.run()
    assert watch.look() == 2
    assert {device.pid: len(device.runs) for device in watch.close()} == {1: 1, 2: 1}


def test_an_executor_that_cannot_be_asked_is_noted(start):
    """Such as one of another user, or of another version."""
    executor = start(1)
    executor.process = ExecutorProcess(
        pid=1, device="null", owner_pid=1, socket=f"{executor.process.socket}.gone"
    )
    watch = RunWatch("url")
    assert watch.look() == 0
    assert watch.note.startswith("the executor of null cannot be asked: ")
    assert watch.close() == []
