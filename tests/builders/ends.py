"""The kernel's word on how processes end whose parent keeps it for itself."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Sequence

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
LIBC.ptrace.restype = ctypes.c_long
# Source: ptrace(2) and linux/ptrace.h.
CONT, GETEVENTMSG, SEIZE = 7, 0x4201, 0x4206
TRACEEXIT, EVENT_EXIT = 0x40, 6
POLL_S = 0.02
ANY_TRACED = 0x40000000  # __WALL: children of clone, too. Source: wait(2)


class Ends:
    """Watches processes of this user, none of them a child of this one, to their end.

    All calls of ptrace come from one thread, as the kernel wants them.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._open = list(pids)
        self._ends: dict[int, int] = {}
        self._failed: OSError | None = None
        self._seized = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ends", daemon=True)
        self._thread.start()
        self._seized.wait()
        if self._failed is not None:
            raise self._failed

    def wait(self, seconds: float = 30.0) -> dict[int, str]:
        """Return how each process has ended: "exit 0", "SIGSEGV"."""
        self._thread.join(seconds)
        return {pid: _said(status) for pid, status in self._ends.items()}

    def _watch(self) -> None:
        try:
            for pid in self._open:
                _call(SEIZE, pid, TRACEEXIT)
        except OSError as error:
            self._failed = error
            return
        finally:
            self._seized.set()
        while self._open:
            for pid in list(self._open):
                self._look_after(pid)
            time.sleep(POLL_S)

    def _look_after(self, pid: int) -> None:
        stopped, status = os.waitpid(pid, os.WNOHANG | ANY_TRACED)
        if not stopped:
            return
        if not os.WIFSTOPPED(status):  # only from here on can its parent see it
            self._open.remove(pid)
            return
        event, number = status >> 16, os.WSTOPSIG(status)
        if event == EVENT_EXIT:
            code = ctypes.c_ulong()
            _call(GETEVENTMSG, pid, ctypes.addressof(code))
            self._ends[pid] = code.value
        _call(CONT, pid, 0 if event else number)


def _call(request: int, pid: int, data: int) -> None:
    if LIBC.ptrace(request, pid, None, data) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _said(status: int) -> str:
    if os.WIFEXITED(status):
        return f"exit {os.WEXITSTATUS(status)}"
    return signal.Signals(os.WTERMSIG(status)).name
