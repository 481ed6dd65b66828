"""A request's way through the code: which files and functions it enters, and how often it moves.

Counted with `sys.setprofile` in every thread that the action begins or that is handed in its work;
functions are named ones of this project, so neither lambdas nor comprehensions.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import ge_backend

__all__ = ["Walk", "Way", "walked"]

# Where the packages of a server lie, and what is shown of their files: each is looked up once.
FOLDER = Path(ge_backend.__file__).resolve().parents[1]
PACKAGES = ("ge_backend", "ge_text")
_SHOWN: dict[str, str] = {}


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


class Walk:
    """Looks at what actions enter.

    Args:
        but: names of threads that go their own way beside the actions.
    """

    def __init__(self, but: Collection[str] = ()) -> None:
        self._but = but
        self._walking = False
        self._entered: dict[tuple[str, str], None] = {}
        self._last: dict[int, str] = {}
        self._calls = self._moves = 0

    @contextlib.contextmanager
    def seeing_threads(self) -> Iterator[None]:
        """Look also at the threads that begin within, whenever an action is walked."""
        threading.setprofile(self._note)
        try:
            yield
        finally:
            threading.setprofile(None)

    def of(self, action: Callable[[], object]) -> Way:
        """Run an action and return its way."""
        self._entered, self._last, self._calls, self._moves = {}, {}, 0, 0
        with self.seeing_threads():
            self._walking = True
            sys.setprofile(self._note)
            try:
                action()
            finally:
                sys.setprofile(None)
                self._walking = False
        return Way(tuple(self._entered), self._calls, self._moves, len(self._last))

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._walking or event != "call" or frame.f_code.co_name[0] == "<":
            return
        path = frame.f_code.co_filename
        if path not in _SHOWN:
            file = path.removeprefix(f"{FOLDER}/")
            _SHOWN[path] = file if file.partition("/")[0] in PACKAGES else ""
        file, thread = _SHOWN[path], threading.current_thread()
        if not file or thread.name in self._but:
            return
        self._entered.setdefault((file, frame.f_code.co_name))
        self._calls += 1
        self._moves += self._last.get(thread.ident or 0) not in (None, file)
        self._last[thread.ident or 0] = file


def walked(action: Callable[[], object]) -> Way:
    """Run an action and return its way; threads that ran before it are not looked at."""
    return Walk().of(action)
