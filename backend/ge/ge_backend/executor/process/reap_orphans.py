"""What an executor becomes when its server has ended: it ends the stubs that do not by themselves.

Triton's stub notices the end of its server by itself within a second, except where the server was
killed while it held a lock that the two share: then the stub waits for that for ever, holding
Python's own lock (seen on 2.51 with `kill -9` under load), and keeps its memory and its folder.

Run as a file, without this package: `python reap_orphans.py FOLDER PID:BIRTH …`. So the executor
has given its device back before the stubs are waited for. The folder holds copies of model files,
which are not needed any more. Where stubs have their executors inside, the first of them starts it
as `python reap_orphans.py SERVER`, to wait for the server's end.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

__all__ = ["birth_of", "main", "region_of", "server_of", "stubs_of", "wait_for_end"]

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is, by shm_overview(7)
# For a stub to end by itself, which it does in order.
GRACE_S = 3.0
POLL_S = 0.1
# Where the end of a process is not told.
WATCH_S = 0.2


def birth_of(pid: int) -> str:
    """Return when a process began, in clock ticks: a reused id has another; "" once it has ended.

    Source: proc(5), /proc/pid/stat: after the name in brackets come state (3) … starttime (22).
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    values = text.rpartition(")")[2].split()
    return "" if values[0] in "ZX" else values[19]


def wait_for_end(pid: int, timeout_s: float | None = None) -> None:
    """Return when the process has ended, or is a zombie, or after that time; at once for none."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # a kernel before 5.3 or a sandbox has no pidfd_open
        _poll_for_end(pid, math.inf if timeout_s is None else timeout_s)
        return
    try:
        select.select([descriptor], [], [], timeout_s)
    finally:
        os.close(descriptor)


def _poll_for_end(pid: int, timeout_s: float) -> None:
    birth, end = birth_of(pid), time.monotonic() + timeout_s
    while birth and birth_of(pid) == birth and time.monotonic() < end:
        time.sleep(WATCH_S)


def region_of(pid: int) -> Path | None:
    """Return the shared memory of a stub; None for any other process.

    Source: python_backend r24.10 src/pb_stub.cc: the second argument is the region's name.
    """
    words = _words_of_stub(pid)
    return SHARED_MEMORY / Path(words[2]).name if words else None


def server_of(pid: int) -> int:
    """Return the server of a stub; 0 for any other process."""
    words = _words_of_stub(pid)
    return int(words[5]) if words[5:6] and words[5].isdecimal() else 0


def stubs_of(server: int) -> list[int]:
    """Return the stubs that a server has started, also those that it was starting when it ended.

    None where no file can be opened to look for them.
    Other containers count their processes anew, so theirs may name a server of this number, too.
    Source: python_backend r24.10 src/pb_stub.cc: the fifth argument is the server's process.
    """
    found: list[int] = []
    try:
        processes = list(PROC.iterdir())
    except OSError:
        return found
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if process.name.isdecimal() and _words_of_stub(int(process.name))[5:6] == [str(server)]:
                inside = (process / "ns" / "pid").readlink()
                if inside == (PROC / "self" / "ns" / "pid").readlink():
                    found.append(int(process.name))
    return found


def _words_of_stub(pid: int) -> list[str]:
    """Return the command line of a stub; nothing for any other process."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
    return words if Path(words[0]).name == "triton_python_backend_stub" else []


def main(arguments: list[str]) -> None:
    """Wait for these processes a while; end those that are stubs; remove what they leave."""
    if len(arguments) == 1 and arguments[0].isdecimal():
        server = int(arguments[0])
        wait_for_end(server)
        _end({str(pid): birth_of(pid) for pid in stubs_of(server)})
        return
    folder = Path(arguments[0])
    _end(dict(argument.split(":") for argument in arguments[1:]))
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def _end(born: dict[str, str]) -> None:
    deadline = time.monotonic() + GRACE_S
    while _living(born) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for pid in _living(born):
        region = region_of(pid)
        if region is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            region.unlink(missing_ok=True)


def _living(born: dict[str, str]) -> list[int]:
    return [int(pid) for pid, birth in born.items() if birth and birth_of(int(pid)) == birth]


if __name__ == "__main__":
    main(sys.argv[1:])
