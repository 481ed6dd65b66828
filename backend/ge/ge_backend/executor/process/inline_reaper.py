"""What ends the stubs of a server that was killed, where none has its executor elsewhere."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

from ge_backend.executor.process import reap_orphans
from ge_backend.executor.process.server_process import name_of

__all__ = ["reap_with_server"]

# Of an abstract socket, which the process holds: a server has one.
PREFIX = "ge-backend-reaper"


def reap_with_server() -> None:
    """Start `reap_orphans` for this stub's server, unless it runs; do nothing in other processes.

    A stub whose server was killed may wait for it for ever with Python's own lock, so no thread of
    its own can end it.
    """
    server = reap_orphans.server_of(os.getpid())
    if not server:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as name, contextlib.suppress(OSError):
        name.bind(f"\0{PREFIX}/{name_of(server)}")  # fails where it runs
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(reap_orphans.__file__).resolve()), str(server)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[name.fileno()],
            start_new_session=True,
            cwd="/",
        )
