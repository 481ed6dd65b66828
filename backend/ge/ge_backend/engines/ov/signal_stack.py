"""The calling thread's stack for signals, which OpenVINO changes behind its back.

A compiled model sets one when it is made and puts the former one back when it is freed, in whatever
order and thread that happens: then a thread is left with a stack that is freed already, and the
next signal, a Ctrl-C, ends the process at once (seen with OpenVINO on Linux x86-64).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

__all__ = ["SignalStack", "signal_stack", "signal_stack_kept"]


class SignalStack(ctypes.Structure):
    """`stack_t` of Linux. Source: sigaltstack(2)."""

    _fields_ = (("place", ctypes.c_void_p), ("flags", ctypes.c_int), ("nbytes", ctypes.c_size_t))


def signal_stack() -> SignalStack:
    """Return the calling thread's."""
    found = SignalStack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found))
    return found


@contextlib.contextmanager
def signal_stack_kept() -> Iterator[None]:
    """Put the calling thread's back after the block."""
    before = signal_stack()
    try:
        yield
    finally:
        ctypes.CDLL(None).sigaltstack(ctypes.byref(before), None)
