"""A time limit for work that other processes wait for and cannot end: at it, this process ends."""

from __future__ import annotations

import contextlib
import faulthandler
from collections.abc import Iterator

from ge_backend.executor.client.watch import SILENT_S

__all__ = ["bounded"]


@contextlib.contextmanager
def bounded(seconds: float = SILENT_S) -> Iterator[None]:
    """End this process if the block takes longer; each thread's traceback is then in its output.

    For a block that holds an address's lock: the process that started this one ends it sooner, but
    may have been killed. It is not done by a Python thread, which a library could keep from
    running. There is one such block at a time.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
