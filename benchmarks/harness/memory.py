"""Memory of a server's processes, read from /proc: how much, and in which of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.harness.cpu import roles_of
from ge_tools.tritonserver.directory import processes_of

__all__ = ["MemoryWatch", "memory_by_role", "read_pss"]

PROC = Path("/proc")
EVERY_S = 0.25


def read_pss(smaps_rollup: str) -> int:
    """Return the bytes that a `/proc/PID/smaps_rollup` text says a process has.

    Of pages that several processes map, each has its share, so the sum over processes is right.
    """
    fields = dict(line.split(":", 1) for line in smaps_rollup.splitlines() if ":" in line)
    return int(fields["Pss"].split()[0]) * 1024


def memory_by_role(pids: Iterable[int]) -> dict[str, int]:
    """Return the bytes of these processes, summed by role; those that are gone have none."""
    sums: dict[str, int] = {}
    for pid, role in roles_of(pids).items():
        try:
            text = (PROC / str(pid) / "smaps_rollup").read_text()
        except OSError:
            continue
        if "Pss:" in text:
            sums[role] = sums.get(role, 0) + read_pss(text)
    return sums


class MemoryWatch:
    """Looks at the processes of a server several times a second and keeps the highest sum.

    Args:
        run: the server's folder, by which its processes are found.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._peak: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def peak(self) -> Mapping[str, int]:
        """Bytes by role when the sum was highest."""
        return self._peak

    def __enter__(self) -> MemoryWatch:  # noqa: PYI034 - Self is of Python 3.11
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.is_set()  # once more after the end, which is part of it
            found = memory_by_role(processes_of(self._run))
            if sum(found.values()) > sum(self._peak.values()):
                self._peak = found
            if not ended:
                time.sleep(EVERY_S)
