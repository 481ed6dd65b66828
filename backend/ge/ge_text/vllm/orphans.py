"""Ends what an executor leaves behind, however it ends: vLLM's processes, which hold the device.

vLLM's engine core does not notice that its parent was killed (seen with 0.32 and `kill -9`): it
stays, and its workers with it. An executor leads a process group of its own, in which they are.

Run as a file, without this package: `python orphans.py PID`, in another group.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["main", "watch_for_orphans"]

POLL_S = 0.2


def watch_for_orphans() -> None:
    """Start the watch over this process, which leads its group.

    Where it does not, as in a stub's own process, others would be hit: then nothing is watched.
    """
    if os.getpgrp() == os.getpid():
        subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def main(pid: int) -> None:
    """Wait until a process has ended, and kill what is left of its group."""
    try:
        _wait(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _wait(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # a kernel before 5.3 or a sandbox has no pidfd_open
        while Path(f"/proc/{pid}").exists():
            time.sleep(POLL_S)
        return
    select.select([descriptor], [], [])


if __name__ == "__main__":
    main(int(sys.argv[1]))
