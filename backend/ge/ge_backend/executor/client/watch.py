"""A stub's eye on its executor: one that hangs is ended, so that all who wait for it go on.

A thread that waits for a dead executor finds out at once, because its connections break; for one
that is stopped or deadlocked it would wait for ever. An executor beats several times a second,
however long runs take, and once a second while it is idle, which its page says. One that does not
beat is hung if it is stopped, or if it uses no processor time either: a library that loads a large
model may keep every Python thread from running for a while. An executor that starts does not beat
yet: it is judged likewise, but may be idle for longer. Time in which this process did not run
itself does not count: a container that is paused stops both.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from ge_backend.executor.protocol.outstanding import OutstandingView

__all__ = ["SILENT_S", "STARTING_IDLE_S", "Silence", "Watch", "is_hung", "still_runs"]

log = logging.getLogger(__name__)

PERIOD_S = 0.25
# At most, where the executor is idle and says that it will not beat for a while.
LONGEST_S = 1.5
# The most time that counts between two looks.
MAX_COUNTED_NS = 500_000_000
# One that beats is well, and proc(5) is not read: that would be most of what an idle stub does.
QUIET_S = 0.5
# How long one may be silent that is stopped, that does nothing, and that does something.
STOPPED_S = 1.0
IDLE_S = 30.0
SILENT_S = 300.0
# Instead of `IDLE_S` for one that starts: a driver may wait a minute for its device, asleep.
STARTING_IDLE_S = 120.0
STOPPED = ("T", "t")


def is_hung(*, silent_s: float, idle_s: float, state: str, most_idle_s: float = IDLE_S) -> bool:
    """Return whether a process that does not beat counts as lost.

    Args:
        silent_s: how long it has not.
        idle_s: how long it has used no processor, nor read its disk.
        state: by proc(5).
        most_idle_s: how long it may.
    """
    limit_s = STOPPED_S if state in STOPPED else SILENT_S
    return silent_s > limit_s or min(silent_s, idle_s) > most_idle_s


def still_runs(pid: int) -> bool:
    """Return whether a process is, or may be, there that still writes to memory: no zombie does."""
    with contextlib.closing(_Process(pid)) as process:
        return process.look() is not None


class Watch:
    """A thread that ends a process when it hangs.

    Args:
        pid: the process; it counts as alive now.
        most_idle_s: how long it may do nothing while it does not beat.

    Raises:
        RuntimeError: no thread can be started.
    """

    def __init__(self, pid: int, *, most_idle_s: float = IDLE_S) -> None:
        self._pid = pid
        self._most_idle_s = most_idle_s
        self._since_ns = time.monotonic_ns()
        self._beats: OutstandingView | None = None
        self._stop = threading.Event()
        self._process = _Process(pid)
        self._thread = threading.Thread(target=self._look, name="watch executor", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # it would have closed that
            self._process.close()
            raise

    def follow(self, beats: OutstandingView) -> None:
        """Read from there, from now on, when it was last alive."""
        self._beats = beats

    def close(self) -> None:
        """Look no more; nothing is held afterwards."""
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        silence = Silence(self._since_ns)
        with contextlib.closing(self._process) as process:
            pause_s = PERIOD_S
            while not self._stop.wait(pause_s):
                beat_ns = self._since_ns if self._beats is None else self._beats.beat_ns
                now_ns = time.monotonic_ns()
                pause_s = min(PERIOD_S + max(0, beat_ns - now_ns) / 1e9, LONGEST_S)
                silent_s = silence.seconds(now_ns, beat_ns)
                if silent_s < QUIET_S:
                    continue
                state = process.look()
                if state is None:
                    return  # it has ended
                if is_hung(
                    silent_s=silent_s,
                    idle_s=process.idle_s,
                    state=state,
                    most_idle_s=self._most_idle_s,
                ):
                    log.error(
                        "the executor, process %d, has shown no life for %.1f s (state %s): it "
                        "hangs, is ended, and will be started anew",
                        self._pid,
                        silent_s,
                        state,
                    )
                    process.kill()
                    return


@dataclass(slots=True)
class Silence:
    """How long another process has shown no life, as far as this one was there to see it.

    Args:
        looked_ns: CLOCK_MONOTONIC, as all its times.
    """

    looked_ns: int
    _silent_ns: int = 0

    def seconds(self, now_ns: int, beat_ns: int) -> float:
        """Return it; asked again and again, with when the other one was, or will be, alive."""
        self._silent_ns += min(now_ns - self.looked_ns, MAX_COUNTED_NS)
        self._silent_ns = max(0, min(self._silent_ns, now_ns - beat_ns))
        self.looked_ns = now_ns
        return self._silent_ns / 1e9


class _Process:
    """Another process of this user, as proc(5) shows it.

    Attributes:
        idle_s: how long it had done nothing when it was last looked at.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.idle_s = 0.0
        self._worked = ""
        self._worked_ns = 0
        self._descriptor = -1
        # It never comes to mean another process; a kernel before 5.3 has none.
        with contextlib.suppress(OSError, AttributeError):
            self._descriptor = os.pidfd_open(pid)

    def close(self) -> None:
        """Forget the process."""
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def look(self) -> str | None:
        """Return its state; None once it has ended, "?" where no descriptor is free to read it.

        Source: /proc/pid/stat: after the name in brackets come state (3) … majflt (12), cmajflt,
        utime (14), stime (15). `majflt` counts the pages that it had to wait for, such as code on
        a cold disk.
        """
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError:
            return "?"
        values = text.rpartition(")")[2].split()
        worked, now_ns = " ".join(values[9:13]), time.monotonic_ns()
        if worked != self._worked:
            self._worked, self._worked_ns = worked, now_ns
        self.idle_s = (now_ns - self._worked_ns) / 1e9
        return None if values[0] in "ZX" else values[0]

    def kill(self) -> None:
        """End it, also while it is stopped."""
        with contextlib.suppress(ProcessLookupError):
            if self._descriptor >= 0:
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)
