"""The spare executor itself: it rehearses, until it becomes the executor or is dismissed."""

from __future__ import annotations

import json
import os
import select
import socket
from pathlib import Path

from ge_backend.device.rehearsal import rehearse
from ge_backend.executor.process.spare import ACCEPTED
from ge_backend.executor.protocol.peer import peer_uid

__all__ = ["wait_for_promotion"]

MESSAGE_BYTES = 1 << 16
PATIENCE_S = 5.0  # with who connects and says nothing
LOOK_S = 60.0  # between two looks whether there is an executor to stand in for


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
            for descriptor in descriptors:
                os.close(descriptor)
            if "leave" in message:
                return None
        rehearse(message.get("acts", ()))


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
