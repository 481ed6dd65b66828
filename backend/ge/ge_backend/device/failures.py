"""What an engine's exception becomes: one of our errors, with the engine's reason in one line."""

from __future__ import annotations

from ge_backend.errors import GeError, GraphFailed, OutOfMemory

__all__ = ["failure", "reason"]

_NO_MEMORY = ("bad_alloc", "allocate memory", "not enough memory", "out of memory")
_STACK_FIRST = "The following operation failed in the TorchScript interpreter"
_LONGEST = 600


def reason(error: BaseException) -> str:
    """Return the line that says something; engines add C++ and Python stacks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # TorchScript begins with a stack and ends with the cause, all others begin with the cause.
    at = -1 if lines and lines[0].startswith(_STACK_FIRST) else 0
    text = lines[at] if lines else type(error).__name__
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."


def failure(error: BaseException, path: str) -> GeError:
    """Return `OutOfMemory` if the engine ran out of memory, else `GraphFailed`."""
    text = str(error).lower()
    kind: type[GeError] = GraphFailed
    if isinstance(error, MemoryError) or any(mark in text for mark in _NO_MEMORY):
        kind = OutOfMemory
    return kind(f"{path} failed to run: {reason(error)}")
