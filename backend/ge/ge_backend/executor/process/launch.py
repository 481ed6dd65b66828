"""Reaching a device's executor: connect to it, after starting it if it does not run."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading

from ge_backend.errors import DeviceUnavailable, ExecutorLost, GeError, error_from_name
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.client.watch import still_runs
from ge_backend.executor.process.address import ExecutorAddress
from ge_backend.executor.process.lock import address_lock, make_private, remove_lock
from ge_backend.executor.process.spare import hand_over, keep_spare
from ge_backend.executor.process.spawn import arguments_of, reach, reap, report_pipe, spawn

__all__ = ["connect"]

ATTEMPTS = 5


def connect(address: ExecutorAddress) -> ExecutorConnection:
    """Return a connection to the device's executor, starting it if need be.

    Raises:
        ConfigError: the runtime folder cannot be used.
        DeviceUnavailable: the device cannot be opened, the executor does not start, or this process
            has not what it takes to reach it.
        ExecutorLost: it went away again and again while we connected.
        ProtocolError: it is of another version.
    """
    for _ in range(ATTEMPTS):
        try:
            connection = ExecutorConnection(_reach(address))
        except ExecutorLost:
            continue  # it was just retiring, or was killed: start another
        except (OSError, RuntimeError) as error:  # descriptors, memory, processes; threads
            raise DeviceUnavailable(
                f"the executor for {address.device} cannot be reached or started: {error}; see "
                "what this process may have (ulimit -a), or serve fewer models in this server"
            ) from error
        if address.spare_after_s is not None:
            keeping = threading.Thread(
                target=keep_spare, args=(address,), name="spare", daemon=True
            )
            with contextlib.suppress(RuntimeError):  # no more threads: there is no spare then
                keeping.start()
        return connection
    raise ExecutorLost(
        f"the executor for {address.device} went away {ATTEMPTS} times in a row; "
        "see the server's log for the reason"
    )


def _reach(address: ExecutorAddress) -> socket.socket:
    make_private(address.directory)
    sock = reach(address.socket)
    if sock is None:
        with address_lock(address.socket) as lock:
            sock = reach(address.socket)
            if sock is None:
                _start_or_clean(address, lock)
                sock = reach(address.socket)
    if sock is None:
        raise ExecutorLost(f"the executor for {address.device} started and was gone again")
    return sock


def _start_or_clean(address: ExecutorAddress, lock: int) -> None:
    try:
        _start(address, lock)
    except (GeError, OSError, RuntimeError):
        remove_lock(address.socket)  # the executor could not: we hold it
        raise


def _start(address: ExecutorAddress, lock: int) -> None:
    """Start the executor and wait for its report.

    It inherits the lock and keeps it until it listens, so that no second executor is started if
    this process dies meanwhile.
    """
    if not still_runs(address.owner_pid):
        raise DeviceUnavailable(
            f"the server, process {address.owner_pid}, has ended: no executor is started for it"
        )
    with report_pipe() as (ready, report_of):
        pid, process = _begin(address, ready=ready, lock=lock)
        try:
            text = report_of(pid)
        except (OSError, RuntimeError):  # it cannot be watched, and is ended
            if process is not None:
                process.wait()
            raise
    try:
        report: dict[str, str] = json.loads(text)
    except ValueError as error:  # it ended before or while it wrote, or was ended because it hung
        raise _stillborn(address, -1 if process is None else process.wait()) from error
    if process is not None:  # a spare is reaped by the process that started it
        threading.Thread(target=reap, args=(process, address), name="reap", daemon=True).start()
    if report:
        raise error_from_name(report["error"], report["message"])


def _stillborn(address: ExecutorAddress, status: int) -> GeError:
    """Return the error for an executor that ended without a report."""
    if status < 0:  # by a signal, which need not have been its own doing
        return ExecutorLost(f"the executor for {address.device} was killed while it started")
    return DeviceUnavailable(
        f"the executor for {address.device} ended with status {status} while it started "
        f"(interpreter {address.python or sys.executable!r}); its output is in the server's log"
    )


def _begin(
    address: ExecutorAddress, *, ready: int, lock: int
) -> tuple[int, subprocess.Popen[bytes] | None]:
    """Have the spare become the executor, or start a process; return its id, and it if started."""
    spare = hand_over(address.socket, arguments_of(address), ready, lock)
    if spare is not None:
        return spare, None
    process = spawn(address, ready=ready, lock=lock)
    return process.pid, process
