"""Says what is being waited for, and afterwards how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

__all__ = ["step"]


@contextmanager
def step(console: Console, title: str) -> Iterator[None]:
    """Show a spinner while the block runs; on success leave a line with the time it took."""
    start = time.monotonic()
    with console.status(f"{title} …"):
        yield
    console.print(f"  {title}: {time.monotonic() - start:.1f} s")
