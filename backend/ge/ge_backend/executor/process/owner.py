"""The process with which an executor ends, however it ends: the server."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

__all__ = ["has_ended", "wait_for_end"]

POLL_S = 0.2


def has_ended(pid: int) -> bool:
    """Return whether there is no such process, or it is a zombie."""
    return not _birth(pid)


def wait_for_end(pid: int) -> None:
    """Return when the process has ended, or is a zombie; at once if there is none."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # a kernel before 5.3 or a sandbox has no pidfd_open
        _poll_for_end(pid)
        return
    try:
        select.select([descriptor], [], [])
    finally:
        os.close(descriptor)


def _poll_for_end(pid: int) -> None:
    birth = _birth(pid)
    while birth and _birth(pid) == birth:
        time.sleep(POLL_S)


def _birth(pid: int) -> str:
    """Return when a process began, in clock ticks: a reused id has another; "" once it has ended.

    Source: proc(5), /proc/pid/stat: after the name in brackets come state (3) … starttime (22).
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    values = text.rpartition(")")[2].split()
    return "" if values[0] in "ZX" else values[19]
