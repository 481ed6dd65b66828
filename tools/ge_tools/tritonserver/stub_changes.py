"""Whether a server's stubs may have come or gone, without looking at every process each time.

To look for stubs is to read the command line of every process of the machine. That a known one has
ended the kernel tells of itself (pidfd), and the host makes a region of shared memory for one just
before it starts it. Source: python_backend r24.10 src/stub_launcher.cc: Initialize, then Launch.
"""

from __future__ import annotations

import os
import select
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from pathlib import Path

__all__ = ["StubChanges"]


class StubChanges:
    """Follows processes and regions.

    Args:
        folder: where regions are.
        prefix: how the names of this server's begin.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._regions: AbstractSet[str] | None = None
        self._ends = select.poll()
        self._held: dict[int, int] = {}
        self._blind = False  # a kernel before 5.3, a sandbox, or no descriptor is left

    def follow(self, stubs: Collection[int]) -> None:
        """Notice the ends of these processes from now on, and of no others."""
        for pid in self._held.keys() - set(stubs):
            self._forget(pid)
        self._blind = False
        for pid in set(stubs) - self._held.keys():
            try:
                self._held[pid] = os.pidfd_open(pid)
            except (OSError, AttributeError):  # or it has ended, which is a change as well
                self._blind = True
            else:
                self._ends.register(self._held[pid], select.POLLIN)

    def any(self) -> bool:
        """Return whether anything may have changed since the last call; True where none can tell.

        A stub that has ended is one until it is followed no longer.
        """
        before, self._regions = self._regions, self._named()
        return self._blind or self._regions != before or bool(self._ends.poll(0))

    def close(self) -> None:
        """Follow nothing any more."""
        for pid in list(self._held):
            self._forget(pid)

    def _forget(self, pid: int) -> None:
        descriptor = self._held.pop(pid)
        self._ends.unregister(descriptor)
        os.close(descriptor)

    def _named(self) -> AbstractSet[str]:
        try:
            with os.scandir(self._folder) as entries:
                return {one.name for one in entries if one.name.startswith(self._prefix)}
        except OSError:
            return frozenset()
