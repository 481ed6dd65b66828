"""Whether a run takes one thread or all cores: by how alone runs are, and by what they then take.

A run on all cores is shorter, and takes them from whatever comes while it runs: the next run, the
server, the client. So runs are wide only where nothing else has run or waited for a while. Which of
the two is faster then is found out by the runs themselves, size by size, and not at warm-up, where
comparing took as long as all the rest of a cold start. Where one size gains, larger ones do, too.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ge_backend.errors import GeError
from ge_backend.tensors import Array

__all__ = ["Cores", "ThreadChoice", "num_elements"]

log = logging.getLogger(__name__)

# At half load, requests that come at random leave no such gap once in a thousand; one that waits
# for each answer before it asks again leaves nothing else.
LONELY_S = 0.1
# A run on all cores takes them from the client and the server on the same machine, so a small
# gain is none.
LEAST_GAIN = 1.15
# So many runs of each kind decide, the best of each: what others do can only lengthen a run.
TRIALS = 3
REMEMBERED = 5
# So many runs in a row are of one kind until some size has decided. The first of them does not
# count: each kind has weights of its own, and it finds the other's in the cache.
IN_A_ROW = 4
# One run of so many is of the kind that lost, so that a busy moment does not decide for good. A
# narrow run in the place of a wide one costs more than the other way round.
NARROW_EVERY, WIDE_EVERY = 64, 32
# After so many lonely runs of sizes that have decided, all against all cores, those are given up:
# for so long, since another program may have had the cores, and each time for twice as long.
PATIENCE = 64
GIVEN_UP_S = 60.0
# Sizes that are compared with each other, by seconds per element, differ by less than 20 %.
SIZES_PER_OCTAVE = 4

_Session = TypeVar("_Session")


class Cores:
    """The cores that graphs on the host share, and how long runs have been alone on them.

    Args:
        count: how many.
        clock: seconds; another one in tests.
    """

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = count
        self._clock = clock
        self._company = clock()

    def now(self) -> float:
        """Return the time in seconds."""
        return self._clock()

    def lonely(self, *, exclusive: bool) -> bool:
        """Return whether a run that begins now may use all cores; `exclusive` as in `Graph.run`."""
        now = self._clock()
        if not exclusive:
            self._company = now
        return now - self._company >= LONELY_S


@dataclass(slots=True)
class _Size:
    """The last runs of about one size, seconds per element, and what they have shown.

    Attributes:
        gains: whether the wide ones are clearly shorter; None where there were too few of a kind.
    """

    runs: int = 0
    gains: bool | None = None
    narrow: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    wide: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def take(self, seconds: float, *, wide: bool) -> None:
        """Note a run; where it turns what was known into its opposite, both kinds are tried anew.

        Of the kind that had lost there are old runs only, and those of a slow moment have to be
        compared with each other.
        """
        (self.wide if wide else self.narrow).append(seconds)
        if min(len(self.narrow), len(self.wide)) < TRIALS:
            return
        gains = min(self.narrow) >= min(self.wide) * LEAST_GAIN
        if self.gains is None or self.gains == gains:
            self.gains = gains
            return
        self.runs, self.gains = 0, None
        self.narrow.clear()
        self.wide.clear()


class ThreadChoice(Generic[_Session]):
    """What one graph runs on: its narrow session, or, where that pays, a wide one.

    The wide session is opened in the background when runs are lonely for the first time, and given
    up where no size gains; then it is tried again, after a minute, after two, four and so on.

    Args:
        cores: shared by all graphs of the device.
        threads: of a run, as in `GraphSource`; only 0 leaves a choice, where there are several
            cores.
        narrow: one thread per run; from several threads at once.
        open_wide: makes the session that uses all cores.
        freeing: what the engine wants around the freeing of sessions.
    """

    def __init__(
        self,
        cores: Cores,
        threads: int,
        narrow: _Session,
        open_wide: Callable[[], _Session],
        freeing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._cores = cores
        self._narrow = narrow
        self._wide: _Session | None = None
        self._open_wide = open_wide if threads == 0 and cores.count > 1 else None
        self._freeing = freeing
        self._given_up: _Session | None = None  # until the run that gave it up has let go of it
        self._sizes: dict[int, _Size] = {}
        self._lock = threading.Lock()
        self._opening: threading.Thread | None = None
        self._given_up_until = -math.inf
        self._given_up_s = GIVEN_UP_S

    @contextmanager
    def session(self, elements: int, *, exclusive: bool) -> Iterator[_Session]:
        """Yield what a run of so many input elements runs on, and see how long that takes."""
        if self._given_up is not None:
            with self._freeing():
                self._given_up = None
        if not self._cores.lonely(exclusive=exclusive) or (wide := self._ready()) is None:
            yield self._narrow
            return
        number = _class_of(elements)
        size = self._sizes.setdefault(number, _Size())
        size.runs += 1
        use_wide, counts = self._next(number, size)
        started = time.perf_counter()
        yield wide if use_wide else self._narrow
        if counts:
            size.take((time.perf_counter() - started) / max(1, elements), wide=use_wide)
        self._judge()

    def close(self) -> None:
        """Let go of both sessions; one that is being opened is waited for."""
        with self._lock:
            self._open_wide = None
            opening = self._opening
        if opening is not None:
            opening.join()
        with self._freeing():
            self._wide = self._given_up = None
            del self._narrow

    def _next(self, number: int, size: _Size) -> tuple[bool, bool]:
        """Return whether the next run of a size is wide, and whether it says which is better."""
        gains = self._expected(number) if size.gains is None else size.gains
        if gains is not None:
            return gains != (size.runs % (NARROW_EVERY if gains else WIDE_EVERY) == 0), True
        sizes = list(self._sizes.values())
        if any(other.gains is not None for other in sizes):
            return size.runs % 2 == 0, True
        row, place = divmod(sum(other.runs for other in sizes) - 1, IN_A_ROW)
        return row % 2 == 1, place > 0

    def _expected(self, number: int) -> bool | None:
        """Return whether a size gains by what others say: where a smaller one does, it does too.

        And where a larger one does not, it does not either. None: no size says so.
        """
        shown = [(other, size.gains) for other, size in list(self._sizes.items())]
        if any(gains for other, gains in shown if other < number):
            return True
        return False if any(gains is False for other, gains in shown if other > number) else None

    def _ready(self) -> _Session | None:
        """Return the wide session; it is opened in the background if that was not done yet."""
        if self._wide is not None or self._open_wide is None:
            return self._wide
        if self._cores.now() >= self._given_up_until:
            with self._lock:
                if self._opening is None and self._open_wide is not None:
                    opening = threading.Thread(
                        target=self._open, args=(self._open_wide,), name="wide", daemon=True
                    )
                    self._opening = opening
                    opening.start()
        return self._wide

    def _open(self, open_wide: Callable[[], _Session]) -> None:
        try:
            self._wide = open_wide()
        except GeError as error:
            log.warning("runs that are alone use one thread: %s", error)

    def _judge(self) -> None:
        """Give the wide session up for a while where no size gains."""
        sizes = list(self._sizes.values())
        if any(size.gains for size in sizes):  # first: what most runs find, and soon
            return
        if sum(size.runs for size in sizes if size.gains is not None) < PATIENCE:
            return
        with self._lock:
            self._given_up, self._wide, self._opening = self._wide, None, None
            self._given_up_until = self._cores.now() + self._given_up_s
            self._given_up_s *= 2
            self._sizes = {}


def _class_of(elements: int) -> int:
    """Return the number of the sizes that count as one with this one."""
    return round(math.log2(max(1, elements)) * SIZES_PER_OCTAVE)


def num_elements(inputs: Mapping[str, Array]) -> int:
    """Return the number of input elements, by which sizes of runs are compared."""
    return sum(array.size for array in inputs.values())
