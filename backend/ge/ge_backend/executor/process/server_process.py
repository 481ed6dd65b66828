"""The process with which an executor ends, however it ends: the server."""

from __future__ import annotations

import math
import os
import select
import time
from pathlib import Path

from ge_backend.executor.process.reap_orphans import birth_of

__all__ = ["name_of", "wait_for_end"]

POLL_S = 0.2
PROCESS_NAMESPACE = Path("/proc/self/ns/pid")


def name_of(pid: int) -> str:
    """Return what names a process of ours also where containers share a folder.

    Each container may have processes of the same numbers, so the inode of what the number holds in
    stands beside it, in hexadecimal. Source: pid_namespaces(7), namespaces(7).
    """
    try:
        space = PROCESS_NAMESPACE.stat().st_ino
    except OSError:  # no /proc, or a kernel that was built without them
        return str(pid)
    return f"{pid}-{space:x}"


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
        time.sleep(POLL_S)
