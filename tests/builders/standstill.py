"""Servers that stand still for a while."""

import contextlib
import os
import signal


@contextlib.contextmanager
def standing_still(server):
    """Let a server stand still: what is sent meanwhile reaches it together, however slow the sender."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)
