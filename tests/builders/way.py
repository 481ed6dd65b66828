"""A request's way through the code: which files and functions it enters, and how often it moves.

Counted with `sys.setprofile` in every thread that the action begins or that is handed in its work;
functions are named ones of this project, so neither lambdas nor comprehensions.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ge_backend

__all__ = ["Way", "walked"]

PACKAGE = str(Path(ge_backend.__file__).resolve().parent)


@dataclass(frozen=True)
class Way:
    """What was entered.

    Attributes:
        functions: (file, function), in the order in which they were entered first.
        calls: how often any of them was entered.
        moves: how often the next function entered was in another file.
        threads: that entered any.
    """

    functions: tuple[tuple[str, str], ...]
    calls: int
    moves: int
    threads: int

    @property
    def files(self) -> int:
        """How many files these functions are in."""
        return len({file for file, _ in self.functions})

    def describe(self) -> str:
        """Return it in one line."""
        return (
            f"{len(self.functions)} functions in {self.files} files, {self.calls} calls, "
            f"{self.moves} moves between files, {self.threads} threads"
        )


def walked(action: Callable[[], object]) -> Way:
    """Run an action and return its way; threads that ran before it are not looked at."""
    entered: dict[tuple[str, str], None] = {}
    last: dict[int, str] = {}
    counts = {"calls": 0, "moves": 0}

    def note(frame, event, _):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or code.co_name[0] == "<":
            return
        file, thread = code.co_filename[len(PACKAGE) + 1 :], threading.get_ident()
        entered.setdefault((file, code.co_name))
        counts["calls"] += 1
        counts["moves"] += last.get(thread) not in (None, file)
        last[thread] = file

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Way(tuple(entered), counts["calls"], counts["moves"], len(last))
