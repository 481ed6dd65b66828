"""What goes wrong, one fault each: how it is brought about, and for how long clients may notice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ge_backend.tritonserver import TritonServer, processes_of
from ge_backend.tritonserver.stubs import stubs_of

__all__ = ["FAULTS", "Fault"]

# A request's own limit counts where the model has a queue of its own.
BOUNDED = 'parameters { key: "max_queue_size" value { string_value: "64" } }'
EXECUTOR = "ge_backend.executor.process.main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong under load.

    Attributes:
        name: as the table has it.
        strike: makes it so; returns once it is.
        timeout_us: the requests' own time limit; None: none.
        parameters: of the model, further ones.
        may_fail: some requests may be answered with an error: it is the host's doing.
    """

    name: str
    strike: Callable[[TritonServer], None]
    timeout_us: int | None = None
    parameters: str = ""
    may_fail: bool = False


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


FAULTS = (
    Fault(name="none", strike=_nothing),
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
    Fault(name="stub killed", strike=_kill_stub, may_fail=True),
)
