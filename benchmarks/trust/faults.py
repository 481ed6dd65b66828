"""What goes wrong, one fault each: how it is brought about, and for how long clients may notice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.trust.load import MODEL, Answer, Load, ask_for, break_off, hang_up
from benchmarks.trust.served import serving, write_model
from ge_backend.errors import ServerError
from ge_backend.executor.process.host_processes import stubs_of
from ge_tools.tritonserver import TritonServer, processes_of

__all__ = ["FAULTS", "Fault", "executors"]

# A request's own limit counts where the model has a queue of its own.
BOUNDED = 'parameters { key: "max_queue_size" value { string_value: "64" } }\n'
TWO_INSTANCES = "instance_group [ { count: 2 kind: KIND_CPU } ]\n"
EXECUTOR = "ge_backend.executor.process.main"
# So many clients ask for several times what the server answers, and more than may wait.
CROWD = 400
CROWDED_S = 120.0
HANG_UPS = 10_000
# What rows hold that make the executor grow, and by how much.
GREEDY, GROWN_MIB = -1.0, 24
SETTLE_S = 8.0
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong under load.

    Attributes:
        name: as the table has it.
        strike: makes it so; returns once it is, and what further clients got meanwhile.
        timeout_us: the requests' own time limit; None: none.
        parameters: of the model, further ones.
        graph: further settings of the model on the null device.
        environment: of the server.
        disks: folders that are small disks of their own, in the sight of this server alone: name
            and bytes.
        may_fail: some requests may be answered with an error: it is the host's doing, or theirs.
        may_lose: some may be never answered: it is the host's doing.
        once: nothing makes a request run again, so the backend counts each one once.
    """

    name: str
    strike: Callable[[TritonServer], Sequence[Answer] | None]
    timeout_us: int | None = None
    parameters: str = ""
    graph: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    disks: Mapping[str, str] = field(default_factory=dict)
    may_fail: bool = False
    may_lose: bool = False
    once: bool = False


def executors(server: TritonServer) -> list[int]:
    """Return the server's executors."""
    return [
        pid for pid in processes_of(server.directory.run) if EXECUTOR in _command(pid).split("\0")
    ]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _nothing(server: TritonServer) -> None:
    del server


def _signal_executors(number: int) -> Callable[[TritonServer], None]:
    def strike(server: TritonServer) -> None:
        for pid in executors(server):
            os.kill(pid, number)

    return strike


def _kill_three_times(server: TritonServer) -> None:
    for _ in range(3):
        _signal_executors(signal.SIGKILL)(server)
        time.sleep(2.0)


def _kill_stub(server: TritonServer) -> None:
    os.kill(stubs_of(server.pid)[0].pid, signal.SIGKILL)


def _replace_file(server: TritonServer) -> None:
    """Write garbage over the model file, and kill the executor."""
    model = server.options.repositories[0] / MODEL / "1" / "model.null"
    model.write_text("garbage")
    _signal_executors(signal.SIGKILL)(server)


def _load_too_large(server: TritonServer) -> None:
    """Load a model beside it that does not fit into the device's memory, three times."""
    write_model(server.options.repositories[0], "large", weights_bytes=2**40)
    api = server.options.api
    for _ in range(3):
        with contextlib.suppress(ServerError):
            api.load("large")


def _reload(server: TritonServer) -> None:
    """Load the model anew five times, as if it had been changed."""
    api = server.options.api
    for times in range(5):
        api.load(MODEL, api.served(MODEL), times)


def _second_server(server: TritonServer) -> Sequence[Answer]:
    """Serve the same from another server on the same device, and kill its executor."""
    del server
    with serving() as other:
        load = Load(other.grpc, 4)
        time.sleep(2.0)
        _signal_executors(signal.SIGKILL)(other)
        time.sleep(2.0)
        return load.close()


def _grow(server: TritonServer) -> None:
    """Once what is loaded has settled, let requests make the executor half as large again."""
    time.sleep(SETTLE_S)
    ask_for(server.grpc, GREEDY, 1536 // GROWN_MIB)


def _crowd(server: TritonServer) -> Sequence[Answer]:
    """Let a crowd ask at once for a while; what is refused comes again."""
    load = Load(server.grpc, CROWD)
    time.sleep(CROWDED_S)
    return load.close()


def _hang_up(server: TritonServer) -> None:
    """Send ten thousand requests, and give up on them at once."""
    hang_up(server.grpc, HANG_UPS)


def _break_off(server: TritonServer) -> None:
    """Send ten thousand requests, each over a connection that ends at once."""
    break_off(server.options.local_host, server.options.http_port, HANG_UPS)


def _fill(folder: str) -> Callable[[TritonServer], None]:
    """Return what fills a disk to its last byte, and kills the executor."""

    def strike(server: TritonServer) -> None:
        with contextlib.suppress(OSError), (Path(folder) / "filler").open("wb", 0) as file:
            while True:
                file.write(bytes(4096))
        _signal_executors(signal.SIGKILL)(server)

    return strike


def struck(value: float, deed: str) -> dict[str, object]:
    """Return the setting of a model whose runs go wrong if they hold this value."""
    return {"faults": [{"on": "run", "do": deed, "value": value}]}


TEMPORARY = str(Path(tempfile.gettempdir()) / "ge-full")
FAULTS = (
    Fault(name="none", strike=_nothing, once=True),
    Fault(name="executor killed", strike=_signal_executors(signal.SIGKILL)),
    Fault(name="executor killed three times", strike=_kill_three_times),
    Fault(name="executor stopped for good", strike=_signal_executors(signal.SIGSTOP)),
    Fault(
        name="executor stopped, requests with a limit of 1 s",
        strike=_signal_executors(signal.SIGSTOP),
        timeout_us=1_000_000,
        parameters=BOUNDED,
        may_fail=True,
    ),
    Fault(
        name="executor grown to its limit",
        strike=_grow,
        graph={"faults": [{"on": "run", "do": "grow", "mib": GROWN_MIB, "value": GREEDY}]},
        environment={"GE_EXECUTOR_MEMORY": "1GiB"},
    ),
    Fault(name="stub killed", strike=_kill_stub, may_fail=True),
    Fault(
        name="stub killed, one of two instances",
        strike=_kill_stub,
        parameters=TWO_INSTANCES,
        may_fail=True,
    ),
    Fault(
        name="stub killed, with a queue of its own",
        strike=_kill_stub,
        parameters=BOUNDED,
        may_fail=True,
        may_lose=True,
    ),
    Fault(name="model file replaced by garbage, executor killed", strike=_replace_file),
    Fault(name="model too large loaded beside it, three times", strike=_load_too_large),
    Fault(
        name="memory used up by one row in 10,000",
        strike=_nothing,
        graph=struck(500.0, "out_of_memory"),
        may_fail=True,
    ),
    Fault(
        name="device broken by one row in 10,000",
        strike=_nothing,
        graph=struck(500.0, "fault"),
        may_fail=True,
    ),
    Fault(name="model loaded anew five times", strike=_reload),
    Fault(name="second server on the device, its executor killed", strike=_second_server),
    Fault(
        name="crowd of 400 clients for two minutes",
        strike=_crowd,
        parameters=BOUNDED,
        may_fail=True,
    ),
    Fault(name="10,000 requests given up", strike=_hang_up),
    Fault(name="10,000 connections broken", strike=_break_off),
    Fault(
        name="10,000 connections broken, with a queue of its own",
        strike=_break_off,
        parameters=BOUNDED,
        may_fail=True,
    ),
    Fault(
        name="disk full, executor killed",
        strike=_fill(TEMPORARY),
        disks={TEMPORARY: "32m"},
    ),
    Fault(
        name="shared memory full, executor killed",
        strike=_fill(SHARED_MEMORY),
        disks={SHARED_MEMORY: "32m"},
    ),
)


def mounted(disks: Mapping[str, str]) -> str:
    """Mount small disks, which this process and its children alone see; return why not, or "".

    The process has a namespace of its own (`unshare --mount`).
    """
    for folder, nbytes in disks.items():
        Path(folder).mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", folder]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            return done.stderr.strip()
    if TEMPORARY in disks:
        tempfile.tempdir = TEMPORARY
    return ""
