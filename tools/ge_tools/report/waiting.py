"""Says on stderr that something takes its time: a spinner on a terminal, else lines of the log."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

import ge_backend

__all__ = ["waiting"]


@contextlib.contextmanager
def waiting(title: str) -> Iterator[None]:
    """Show that the block runs, and for how long; nothing of it stays on a terminal.

    The spinner is rich's. Without rich, or where stderr is no terminal, the log is printed.
    """
    try:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:
        shown: contextlib.AbstractContextManager[object] = _logged()
    else:
        console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        spinner = Progress(*columns, console=console, transient=True)
        spinner.add_task(title, total=None)
        shown = spinner if console.is_terminal else _logged()
    with shown:
        yield


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    log = logging.getLogger(ge_backend.__name__)
    handler = logging.StreamHandler(sys.stderr)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
