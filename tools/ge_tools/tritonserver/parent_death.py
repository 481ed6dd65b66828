"""A process that ends when the one that started it does.

Run as a file, it ties itself and becomes the command that follows:
`python parent_death.py PARENT_PID COMMAND …`. That is how a server is started without running
Python code between fork and exec, which is unsafe where other threads (gRPC's, an engine's) hold
locks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["die_with_parent"]

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when the thread that started it ends.

    It holds across exec. Source: prctl(2): the parent is the *thread* that created the process.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def main(arguments: list[str]) -> None:
    """Tie this process to its parent and become `arguments[1:]`."""
    die_with_parent()
    if os.getppid() != int(arguments[0]):
        sys.exit("the parent ended before its child was tied to it")
    os.execv(arguments[1], arguments[1:])  # noqa: S606 - becoming the command is the point


if __name__ == "__main__":
    main(sys.argv[1:])
