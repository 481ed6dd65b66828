"""What an engine's exception becomes: one of our errors, with the engine's reason in one line."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import PurePath

from ge_backend.errors import GeError, GraphFailed, OutOfMemory

__all__ = ["failure", "quiet_failures", "reason", "without_folders"]

log = logging.getLogger(__name__)

_LEVEL = ContextVar("level", default=logging.WARNING)
_NO_MEMORY = ("bad_alloc", "allocate memory", "not enough memory", "out of memory")
_STACK_FIRST = "The following operation failed in the TorchScript interpreter"
_LONGEST = 600
# From a path's beginning only: a long text without one would be tried from each of its letters.
_SOURCE = re.compile(r"(?<![\w.+/-])/?(?:[\w.+-]+/)+(?=[\w.+-]+\.(?:cc|cpp|cu|h|hpp|py)\b)")


def reason(error: BaseException) -> str:
    """Return the line that says something; engines add C++ and Python stacks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # TorchScript begins with a stack, and then says the cause; all others begin with it.
    if lines and lines[0].startswith(_STACK_FIRST):
        causes = [line for line in lines if line.startswith("RuntimeError:")]
        lines = causes[-1:] or lines[-1:]
    text = lines[0] if lines else type(error).__name__
    if isinstance(error, KeyError):  # whose text is the key alone
        text = f"KeyError: {text}"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."


def failure(error: BaseException, path: str) -> GeError:
    """Return `OutOfMemory` if the engine ran out of memory, else `GraphFailed`; log all it says."""
    text = str(error).lower()
    kind: type[GeError] = GraphFailed
    if isinstance(error, MemoryError) or any(mark in text for mark in _NO_MEMORY):
        kind = OutOfMemory
    log.log(_LEVEL.get(), "%s failed to run: %s", path, error)
    return kind(f"{PurePath(path).name} failed to run: {without_folders(reason(error), path)}")


@contextlib.contextmanager
def quiet_failures() -> Iterator[None]:
    """Log failures in this thread as details: the caller of the run says what failed."""
    before = _LEVEL.set(logging.DEBUG)
    try:
        yield
    finally:
        _LEVEL.reset(before)


def without_folders(text: str, path: str) -> str:
    """Return a text that clients may see: no folder of the model's, nor of an engine's sources."""
    folder = str(PurePath(path).parent)
    return _SOURCE.sub("", text.replace(f"{folder}/", "") if folder != "." else text)
