"""A spare executor, as stubs see it: a process that has imported the engines and has no device.

It waits at a socket beside the executor's, whose lock guards it too. When the executor dies, the
stub that would start another has the spare become it: what is left is opening the device and
loading the models. `stand_in.py` is the spare itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from ge_backend.executor.protocol.peer import peer_pid

__all__ = ["ACCEPTED", "dismiss", "hand_over", "is_wanted", "spare_path", "tell"]

ACCEPTED = b"accepted"
# It may be importing a large engine on a busy machine; one that takes longer is stopped, or hangs.
ACCEPTS_WITHIN_S = 30.0
LEAST_CORES, LEAST_BYTES = 4, 16 << 30


def is_wanted(setting: str, cores: int, memory_bytes: int) -> bool:
    """Whether a spare is kept: with `auto`, on machines of 4 cores and 16 GiB, or more."""
    large = cores >= LEAST_CORES and memory_bytes >= LEAST_BYTES
    return setting == "on" or (setting == "auto" and large)


def spare_path(executor: Path) -> Path:
    """Return where the spare of an executor's address listens."""
    return executor.with_suffix(".spare")


def tell(executor: Path, acts: Sequence[str]) -> bool:
    """Have the spare rehearse what a model needs; False: there is none."""
    return _say(executor, {"acts": list(acts)})


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
    sock = _reach(executor)
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
    sock = _reach(executor)
    if sock is None:
        return False
    with sock, contextlib.suppress(OSError):  # it is going
        sock.send(json.dumps(message).encode())
    return True


def _reach(executor: Path) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(str(spare_path(executor)))
    except OSError:
        sock.close()
        return None
    return sock
