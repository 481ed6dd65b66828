"""The executor's entry: `python -m ge_backend.executor.process.main --device cpu …`.

Started by the first stub that needs the device (`launch.py`). It reports on `--ready` (a pipe)
whether the device could be opened, gives up the `--lock` that it inherited, and removes its socket
when it ends. With `--spare` it opens nothing and waits until it is one (`spare.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from ge_backend.device.base import open_device
from ge_backend.device.preload import preload
from ge_backend.errors import GeError
from ge_backend.executor.process import reap_orphans
from ge_backend.executor.process.kept_files import kept_root
from ge_backend.executor.process.listener import Listener, bounded
from ge_backend.executor.process.reap_orphans import birth_of, wait_for_end
from ge_backend.executor.process.spare import spare_path, wait_for_promotion
from ge_backend.executor.server.executor import Executor
from ge_backend.executor.server.memory import MemoryLimit

__all__ = ["keep_freed_memory", "main"]

# mallopt(3), malloc.h; 32 MiB is the largest threshold that glibc takes on 64 bits.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_MMAP_THRESHOLD, NEVER = 32 << 20, 2**31 - 1


def main() -> None:
    """Open the device, serve until the owner has ended or no stub needs the executor, clean up.

    Service managers send SIGTERM to all processes of a server at once. It is meant for the server:
    stubs ignore it, and an executor serves on, but does not linger after the last stub has left.
    A terminal's SIGINT is the server's alone. Source: systemd.kill(5), KillMode=control-group;
    python_backend r24.10 src/pb_stub.cc, SignalHandler.
    """
    arguments = _arguments(sys.argv[1:])
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"ge executor {arguments.device} [{os.getpid()}] %(levelname)s %(message)s",
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()
    address = Path(arguments.socket)
    listeners = [Listener(spare_path(address) if arguments.spare else address)]
    running: list[Executor] = []
    kept = str(kept_root(address.parent, arguments.owner))
    watching = threading.Thread(target=_end_with, args=(arguments.owner, listeners, running, kept))
    watching.daemon = True
    watching.start()
    if arguments.spare:
        arguments = _stood_by(arguments, listeners[0])
        listeners.append(Listener(address))
    listener = listeners[-1]
    try:
        with bounded():
            executor = _opened(arguments, listener)
            running.append(executor)
            listener.open()
    except GeError as error:
        _report(arguments, {"error": type(error).__name__, "message": str(error)})
        sys.exit(1)
    signal.signal(signal.SIGTERM, lambda *_: executor.end_when_left())
    _report(arguments, {})
    listener.serve(executor)


def _opened(arguments: argparse.Namespace, listener: Listener) -> Executor:
    executor = Executor(
        open_device(arguments.device, lanes=arguments.lanes),
        linger_s=arguments.linger,
        pool_bytes=arguments.workspace_pool,
        run_timeout_s=arguments.run_timeout,
        on_fault=functools.partial(_end_broken, listener),
    )
    executor.replace_at(MemoryLimit(arguments.memory), functools.partial(_leave, listener))
    return executor


def keep_freed_memory() -> None:
    """Have glibc keep what is freed, for the next step; does nothing with another C library.

    By default blocks above a threshold go back to the system as soon as they are freed, and the
    next step pays for each of their pages again: a step of 32 texts took 1.1 times as long
    (`python -m tools.probes.language_steps`, with and without `--default-heap`).
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, NEVER)


def _stood_by(spare: argparse.Namespace, listener: Listener) -> argparse.Namespace:
    """Be the spare, until its turn; return the arguments of the executor that this becomes."""
    signal.signal(signal.SIGTERM, lambda *_: _leave(listener))
    listener.open()
    _report(spare, {})
    preload(spare.preload)
    arguments = wait_for_promotion(listener.sock, Path(spare.socket))
    if arguments is None:
        _leave(listener)
        raise SystemExit
    listener.close()
    return _arguments(arguments)


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ge_backend.executor.process.main")
    parser.add_argument("--device", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--owner", type=int, required=True)
    parser.add_argument("--ready", type=int, required=True)
    parser.add_argument("--lock", type=int, required=True)
    parser.add_argument("--linger", type=float, required=True)
    parser.add_argument("--workspace-pool", type=int, required=True, help="bytes; 0: none")
    parser.add_argument("--run-timeout", type=float, required=True, help="seconds; 0: no limit")
    parser.add_argument("--memory", type=int, required=True, help="bytes; 0: no limit")
    parser.add_argument("--lanes", type=int, required=True, help="0: what suits the device")
    parser.add_argument("--spare", action="store_true", help="stand by until called")
    parser.add_argument("--preload", action="append", default=[], help="what a spare imports")
    return parser.parse_args(given)


def _report(arguments: argparse.Namespace, report: dict[str, str]) -> None:
    """Tell the starter how it went, and let the next one have the lock."""
    with contextlib.suppress(BrokenPipeError), os.fdopen(arguments.ready, "w") as ready:
        json.dump(report, ready)
    os.close(arguments.lock)


def _end_with(
    owner_pid: int, listeners: Sequence[Listener], running: Sequence[Executor], kept: str
) -> None:
    """End when the owner does, whatever is running: no client is left to answer.

    The process gives everything back by becoming another program, `reap_orphans`, which waits for
    the last stubs to end.
    """
    wait_for_end(owner_pid)
    listener = listeners[-1]
    try:
        peers = [pid for executor in running for pid in executor.peers() if pid != os.getpid()]
        stubs = {*peers, *reap_orphans.stubs_of(owner_pid)}  # some have not connected yet
        with contextlib.suppress(OSError, GeError):  # no descriptor is free, say
            listener.abandon()
        born = [f"{pid}:{birth_of(pid)}" for pid in stubs]
        program = str(Path(reap_orphans.__file__).resolve())
        with contextlib.suppress(OSError):
            _keep_from_successor()
        os.execv(sys.executable, [sys.executable, "-I", "-S", program, kept, *born])  # noqa: S606
    finally:
        os._exit(1)


def _keep_from_successor() -> None:
    """Have every descriptor closed when this becomes another program, but for its output.

    A driver's file that is inherited would keep the device's memory.
    """
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor > sys.stderr.fileno():
            with contextlib.suppress(OSError):  # the one by which the folder was listed
                os.set_inheritable(descriptor, False)


def _end_broken(listener: Listener) -> None:
    """End because the device broke.

    No run in flight is answered: the stubs repeat theirs alone, which shows the one that breaks it.
    """
    try:
        listener.abandon()
    finally:
        os._exit(1)


def _leave(listener: Listener) -> None:
    """End now. Not by `sys.exit`: that would wait for graphs, and engines crash in its teardown."""
    try:
        listener.abandon()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
