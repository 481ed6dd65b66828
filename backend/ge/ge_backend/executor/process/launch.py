"""Reaching a device's executor: connect to it, or start it first if nobody has."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import ge_backend
from ge_backend.device.base import open_device
from ge_backend.device.search_paths import SEARCH_PATHS, kept_paths
from ge_backend.errors import DeviceUnavailable, ExecutorLost, GeError, error_from_name
from ge_backend.executor.client.link import Link
from ge_backend.executor.process.address import ExecutorAddress
from ge_backend.executor.process.lock import address_lock, make_private, remove_lock
from ge_backend.executor.process.owner import has_ended
from ge_backend.executor.server.service import Executor

__all__ = ["ExecutorAddress", "Link", "connect", "connect_inline"]

ATTEMPTS = 5


def connect(address: ExecutorAddress) -> Link:
    """Return a connection to the device's executor, starting it if need be.

    Raises:
        ConfigError: the runtime folder cannot be used.
        DeviceUnavailable: the device cannot be opened, or the executor does not start.
        ExecutorLost: it went away again and again while we connected.
        ProtocolError: it is of another version.
    """
    for _ in range(ATTEMPTS):
        try:
            return Link(_reach(address))
        except ExecutorLost:
            continue  # it was just retiring, or was killed: start another
    raise ExecutorLost(
        f"the executor for {address.device} went away {ATTEMPTS} times in a row; "
        "see the server's log for the reason"
    )


def connect_inline(device: str, pool_bytes: int = 0, lanes: int = 0) -> Link:
    """Return a connection to an executor inside this process: one protocol, another transport.

    It lives as long as the connection; for debugging, and for tests.
    """
    opened = open_device(device, lanes=lanes)
    executor = Executor(opened, linger_s=0.0, pool_bytes=pool_bytes)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    executor.accept(theirs)
    threading.Thread(target=_retire_inline, args=(executor,), daemon=True).start()
    return Link(ours)


def _retire_inline(executor: Executor) -> None:
    executor.join()
    executor.close()


def _reach(address: ExecutorAddress) -> socket.socket:
    make_private(address.directory)
    sock = _try(address.socket)
    if sock is None:
        with address_lock(address.socket) as lock:
            sock = _try(address.socket)
            if sock is None:
                _start_or_clean(address, lock)
                sock = _try(address.socket)
    if sock is None:
        raise ExecutorLost(f"the executor for {address.device} started and was gone again")
    return sock


def _try(path: Path) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(str(path))
    except OSError as error:
        sock.close()
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            return None
        raise DeviceUnavailable(f"the executor's socket {path} cannot be used: {error}") from error
    return sock


def _start_or_clean(address: ExecutorAddress, lock: int) -> None:
    try:
        _start(address, lock)
    except GeError:
        remove_lock(address.socket)  # the executor could not: we hold it
        raise


def _start(address: ExecutorAddress, lock: int) -> None:
    """Start the executor and wait for its report.

    It inherits the lock and keeps it until it listens, so that nobody starts a second one if this
    process dies meanwhile.
    """
    if has_ended(address.owner_pid):
        raise DeviceUnavailable(
            f"the server, process {address.owner_pid}, has ended: no executor is started for it"
        )
    reading, writing = os.pipe()
    try:
        process = _spawn(address, ready=writing, lock=lock)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    with os.fdopen(reading) as ready:
        text = ready.read()
    if not text:
        raise _stillborn(address, process.wait())
    threading.Thread(target=_reap, args=(process, address), name="reap", daemon=True).start()
    report: dict[str, str] = json.loads(text)
    if report:
        raise error_from_name(report["error"], report["message"])


def _reap(process: subprocess.Popen[bytes], address: ExecutorAddress) -> None:
    """Reap the executor whenever it ends, and remove what it could not if it was killed.

    An unreaped child stays a zombie as long as this process lives.
    """
    process.wait()
    if not address.socket.exists():
        return
    with contextlib.suppress(BlockingIOError), address_lock(address.socket, wait=False):
        successor = _try(address.socket)
        if successor is None:
            address.socket.unlink(missing_ok=True)
            remove_lock(address.socket)
        else:
            successor.close()


def _stillborn(address: ExecutorAddress, status: int) -> GeError:
    """Return the error for an executor that ended without a report."""
    if status < 0:  # by a signal, which need not have been its own doing
        return ExecutorLost(f"the executor for {address.device} was killed while it started")
    return DeviceUnavailable(
        f"the executor for {address.device} ended with status {status} while it started "
        f"(interpreter {address.python or sys.executable!r}); its output is in the server's log"
    )


def _spawn(address: ExecutorAddress, *, ready: int, lock: int) -> subprocess.Popen[bytes]:
    """Start the process.

    Its output goes where the server's goes. It has its own session, so that a terminal's ^C, meant
    for the server, lets it finish; it ends by itself when the server does.
    """
    python = address.python or sys.executable
    command = [
        python,
        "-m",
        "ge_backend.executor.process.main",
        f"--device={address.device}",
        f"--socket={address.socket}",
        f"--owner={address.owner_pid}",
        f"--ready={ready}",
        f"--lock={lock}",
        f"--linger={address.linger_s}",
        f"--workspace-pool={address.pool_bytes}",
        f"--lanes={address.lanes}",
        f"--run-timeout={address.run_timeout_s}",
        f"--memory={address.memory_bytes}",
    ]
    try:
        return subprocess.Popen(
            command,
            env=_environment(address, os.environ),
            cwd=address.directory,
            stdin=subprocess.DEVNULL,
            pass_fds=[ready, lock],
            start_new_session=True,
        )
    except OSError as error:
        raise DeviceUnavailable(
            f"the executor's interpreter {python!r} does not start: {error}; "
            "set GE_PYTHON to a Python that has the engine"
        ) from error


def _environment(address: ExecutorAddress, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the server's environment without its private libraries, with only our own package.

    The server's PYTHONPATH is for its stubs' Python, which need not be the executor's. Of both only
    what the device's own libraries are found by is kept. torch refuses to import where torch_npu is
    installed without CANN unless autoload is off.
    """
    environment = dict(inherited)
    kept = {name: kept_paths(address.device, inherited, name) for name in SEARCH_PATHS}
    for name in ("LD_LIBRARY_PATH", "PYTHONHOME"):
        environment.pop(name, None)
    libraries = [*filter(None, [address.library_path]), *kept["LD_LIBRARY_PATH"]]
    if libraries:
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
    package = str(Path(ge_backend.__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join([package, *kept["PYTHONPATH"]])
    # No working directory on sys.path (from Python 3.11 on; before, it is our private folder).
    environment["PYTHONSAFEPATH"] = "1"
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return environment
