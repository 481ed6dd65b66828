"""Shows how far a starting server is, from the lines that its log gets."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

__all__ = ["shown_startup", "warmup_line"]

PERIOD_S = 0.1


def warmup_line(log: str) -> str:
    """Return the newest warm-up line of a server's log without what the host puts before it."""
    found = re.findall(r'ge (\S+): (warm-up \d+/\d+ [^"\n]*)', log)
    return ": ".join(found[-1]) if found else ""


@contextmanager
def shown_startup(log: Path, console: Console) -> Iterator[None]:
    """Show the newest warm-up line while the block runs; on success say how long it took."""
    start = time.monotonic()
    ended = threading.Event()

    with console.status("starting tritonserver …") as status:

        def follow() -> None:
            while not ended.wait(PERIOD_S):
                line = warmup_line(log.read_text(errors="replace")) if log.exists() else ""
                if line:
                    status.update(line)

        thread = threading.Thread(target=follow, name="startup", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
    console.print(f"  tritonserver ready: {time.monotonic() - start:.1f} s")
