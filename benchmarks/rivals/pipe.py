"""How an engine in another environment is asked: lines of JSON in, lines of JSON out.

In: `[number, prompt, tokens]`; out: `[number, ids]` as ids come, after one line `ready`. Imports
the standard library alone, for any Python.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

__all__ = ["Asked", "asked", "said"]


# Libraries print, too: what they write to standard output goes to standard error.
_OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


class Asked(NamedTuple):
    """One request: its number, the ids of its prompt, and how many tokens it wants."""

    number: int
    prompt: list[int]
    tokens: int


def asked(busy: Callable[[], bool]) -> Iterator[Asked | None]:
    """Yield each request as it comes, and None where none waits and `busy` says there is work.

    Ends when the input does and there is no work left.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(waiting,), daemon=True).start()
    print("ready", file=_OUT, flush=True)
    ended = False
    while busy() or not ended:
        try:
            line = waiting.get(block=not busy())
        except queue.Empty:
            yield None
            continue
        if line:
            yield Asked(*json.loads(line))
        else:
            ended = True


def said(number: int, ids: Sequence[int]) -> None:
    """Send tokens of one request."""
    print(json.dumps([number, list(ids)]), file=_OUT, flush=True)


def _read(waiting: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        waiting.put(line)
    waiting.put("")
