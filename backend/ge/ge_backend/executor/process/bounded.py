"""What others wait for, and nobody else may end: taking too long ends this process."""

from __future__ import annotations

import contextlib
import faulthandler
from collections.abc import Iterator

from ge_backend.executor.client.watch import SILENT_S

__all__ = ["bounded"]


@contextlib.contextmanager
def bounded(seconds: float = SILENT_S) -> Iterator[None]:
    """End this process if the block takes longer; what each thread did then is in its output.

    For what holds an address's lock: who started this process ends it sooner, but may have been
    killed. No thread of Python's does it, which a library could keep from running. There is one
    such block at a time.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
