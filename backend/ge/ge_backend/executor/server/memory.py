"""How much memory the executor has for itself, and when that is too much.

Engines grow: each new shape may leave something behind. At a limit the executor ends in order and
is started anew, which costs its stubs a restart and no request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from ge_backend.model.config.sizes import format_bytes

__all__ = ["MemoryLimit", "own_bytes"]

log = logging.getLogger(__name__)

# What was just loaded, and is being measured, counts as needed and not as grown.
SETTLE_S = 5.0
# Above this share of the limit it is said; what needs as much from the beginning is not replaced.
WARNING_SHARE = 0.9
_STATUS = Path("/proc/self/status")


def own_bytes() -> int:
    """Return the memory that is this process's own, swapped out or not; 0 where it is not known.

    What it shares with stubs does not count, nor do pages of files, which others may use, too.
    Source: proc(5), /proc/pid/status: RssAnon and VmSwap, in kB.
    """
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(
        int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon", "VmSwap"))
    )


class MemoryLimit:
    """Says when a process that has grown has to be replaced.

    Args:
        nbytes: how much it may have; 0: as much as it likes.
        clock: seconds.
    """

    def __init__(self, nbytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._nbytes = nbytes
        self._clock = clock
        self._loaded: object = None
        self._since = clock()
        self._needed = 0
        self._warned = False

    def exceeded(self, nbytes: int, loaded: object) -> bool:
        """Return whether the process has to be replaced.

        Args:
            nbytes: what it has now.
            loaded: what it serves; compared with what came before.
        """
        if loaded != self._loaded:
            self._loaded, self._since, self._needed = loaded, self._clock(), 0
        if not self._nbytes or self._clock() - self._since < SETTLE_S:
            return False
        if not self._needed:
            self._needed = max(1, nbytes)
            if self._is_nearly(self._needed):
                log.error(
                    "what is loaded takes %s of memory, and GE_EXECUTOR_MEMORY allows %s: another "
                    "executor would take as much, so this one is not replaced; allow more",
                    *map(format_bytes, (nbytes, self._nbytes)),
                )
        if self._is_nearly(self._needed):
            return False
        if not self._warned and self._is_nearly(nbytes):
            self._warned = True
            log.warning(
                "memory has grown from %s to %s; at %s the executor is replaced",
                *map(format_bytes, (self._needed, nbytes, self._nbytes)),
            )
        return nbytes > self._nbytes

    def _is_nearly(self, nbytes: int) -> bool:
        return nbytes > WARNING_SHARE * self._nbytes
