"""A spare executor: a process that has imported the engines and has no device.

It waits at a socket beside the executor's, whose lock guards it too. When the executor dies, the
stub that would start another has the spare become it: what is left is opening the device and
loading the models. What others do with a spare comes first, and last what it does itself.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ge_backend.device.preload import preload
from ge_backend.errors import DeviceUnavailable, GeError
from ge_backend.executor.client.watch import still_runs
from ge_backend.executor.process.address import ExecutorAddress
from ge_backend.executor.process.lock import address_lock, lock_path, remove_lock
from ge_backend.executor.process.spawn import reach, reap, remove_left, report_pipe, spawn
from ge_backend.executor.protocol.descriptors import close_all
from ge_backend.executor.protocol.peer import peer_pid, peer_uid

__all__ = [
    "dismiss",
    "hand_over",
    "is_wanted",
    "keep_spare",
    "prepare",
    "spare_path",
    "wait_for_promotion",
]

log = logging.getLogger(__name__)

ACCEPTED = b"accepted"
# It may be importing a large engine on a busy machine; one that takes longer is stopped, or hangs.
ACCEPTS_WITHIN_S = 30.0
MIN_CORES, MIN_BYTES = 4, 16 << 30
MESSAGE_BYTES = 1 << 16
PATIENCE_S = 5.0  # a spare's, with who connects and says nothing
LOOK_S = 60.0  # between a spare's looks whether there is an executor to stand in for


def is_wanted(setting: str, cores: int, memory_bytes: int) -> bool:
    """Whether a spare is kept: with `auto`, on machines of 4 cores and 16 GiB, or more."""
    large = cores >= MIN_CORES and memory_bytes >= MIN_BYTES
    return setting == "on" or (setting == "auto" and large)


def spare_path(executor: Path) -> Path:
    """Return where the spare of an executor's address listens."""
    return executor.with_suffix(".spare")


def prepare(executor: Path, imports: Sequence[str]) -> bool:
    """Have the spare preload what a model needs; False: there is none."""
    return _say(executor, {"imports": list(imports)})


def dismiss(executor: Path) -> None:
    """End the spare, if there is one; the caller holds the address's lock."""
    _say(executor, {"leave": True})
    spare_path(executor).unlink(missing_ok=True)


def hand_over(executor: Path, arguments: Sequence[str], ready: int, lock: int) -> int | None:
    """Have the spare become the executor, and return its process.

    None: there is none, or it does not answer.

    Args:
        executor: the address, whose lock the caller holds.
        arguments: of an executor, without the two descriptors.
        ready: where it reports; it gets a copy.
        lock: the address's; it gets a copy.
    """
    sock = _spare_at(executor)
    if sock is None:
        return None
    with sock:
        order = json.dumps({"arguments": list(arguments)}).encode()
        try:
            sock.settimeout(ACCEPTS_WITHIN_S)
            socket.send_fds(sock, [order], [ready, lock])
            if sock.recv(len(ACCEPTED)) == ACCEPTED:
                return peer_pid(sock)
        except OSError:
            pass
        # Never two executors: whatever it does, it must not go on.
        with contextlib.suppress(ProcessLookupError):
            os.kill(peer_pid(sock), signal.SIGKILL)
    spare_path(executor).unlink(missing_ok=True)
    return None


def _say(executor: Path, message: dict[str, object]) -> bool:
    sock = _spare_at(executor)
    if sock is None:
        return False
    with sock, contextlib.suppress(OSError):  # it is going
        sock.send(json.dumps(message).encode())
    return True


def _spare_at(executor: Path) -> socket.socket | None:
    with contextlib.suppress(DeviceUnavailable):
        return reach(spare_path(executor))
    return None


def keep_spare(address: ExecutorAddress) -> None:
    """Wait, and have a spare preload what this stub's model needs; start one if there is none.

    Every stub does it, some time after it connects: a server that starts has better to do. Without
    an executor there is none to stand in for, and nothing is done.
    """
    time.sleep(address.spare_after_s or 0.0)
    try:
        if address.directory.is_dir() and still_runs(address.owner_pid):
            with address_lock(address.socket) as lock:
                _keep(address, lock)
            # An executor that ended meanwhile, with its server say, could not remove the lock.
            if lock_path(address.socket).exists() and not address.socket.exists():
                remove_left(address)
    except (GeError, OSError, RuntimeError) as error:  # no thread for its watch, say
        log.warning("there is no spare executor for %s: %s", address.device, error)


def _keep(address: ExecutorAddress, lock: int) -> None:
    executor = reach(address.socket)
    if executor is None:
        remove_lock(address.socket)  # which we hold: nothing else may be left of the address
        return
    executor.close()
    if prepare(address.socket, address.imports):
        return
    process = _started(address, lock)
    threading.Thread(target=reap, args=(process, address), name="reap", daemon=True).start()


def _started(address: ExecutorAddress, lock: int) -> subprocess.Popen[bytes]:
    """Start a spare, and return once it listens or has ended: the lock is ours to give back."""
    more = ["--spare", *(f"--preload={name}" for name in address.imports)]
    with report_pipe() as (ready, report_of):
        process = spawn(address, ready=ready, lock=lock, more=more)
        if not report_of(process.pid):
            spare_path(address.socket).unlink(missing_ok=True)
            log.warning("the spare executor for %s ended while it started", address.device)
    return process


def wait_for_promotion(listener: socket.socket, executor: Path) -> list[str] | None:
    """Do what stubs say until this process becomes the executor; return its arguments.

    The two descriptors that they name are this process's own then. None: it is to leave.

    Args:
        listener: of the spare's address.
        executor: the executor's address; a spare of none leaves.
    """
    while True:
        if not select.select([listener], [], [], LOOK_S)[0]:
            if executor.exists():
                continue
            return None
        sock = listener.accept()[0]
        with sock:
            if peer_uid(sock) != os.getuid():
                continue
            message, descriptors = _received(sock)
            if "arguments" in message and len(descriptors) == 2:  # noqa: PLR2004 - ready, lock
                ready, lock = descriptors
                sock.send(ACCEPTED)
                return [*message["arguments"], f"--ready={ready}", f"--lock={lock}"]
            close_all(descriptors)
            if "leave" in message:
                return None
        preload(message.get("imports", ()))


def _received(sock: socket.socket) -> tuple[dict[str, list[str]], list[int]]:
    """Return one message and the descriptors that came with it; empty for what is none."""
    sock.settimeout(PATIENCE_S)
    try:
        data, descriptors, _, _ = socket.recv_fds(sock, MESSAGE_BYTES, 2)
    except OSError:
        return {}, []
    try:
        message = json.loads(data)
    except ValueError:
        return {}, descriptors
    return message if isinstance(message, dict) else {}, descriptors
