"""Whether a run takes its share of the cores or all: alone all, unless fewer are seen to be faster.

A run on all cores is shorter, and takes them from whatever comes while it runs: the next run, the
server, the client. So runs are wide only where they are alone (`JobQueue.alone`). There wide is the
rule. A graph of small operators may take as long on one thread, or less: so now and
then a few runs of about one size are of the other kind, and the least times of both are compared,
since what others do can only lengthen a run.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ge_backend.device.machine.background import Background
from ge_backend.tensors import Array

__all__ = ["Cores", "ThreadChoice", "num_elements"]

# A run on all cores takes them from the client and the server on the same machine, and wakes some
# that would have slept, so a small gain is none: as a ratio, and in seconds.
MIN_GAIN, MIN_GAIN_S = 1.1, 50e-6
# How many of the last runs of each kind are remembered; the shortest of them counts. What is older
# is of another moment, in which the machine was faster or slower.
KEPT_TIMES = 4
# How many runs in a row a trial of the kind that lost has. The first of them finds the other kind's
# weights in the cache and does not count.
TRIAL = 3
# Runs of a size before its first trial, and between two: four times as many with each that changes
# nothing, up to the larger, and few after one that does, which may be wrong. Texts are of some 25
# sizes: with 16 at first, and twice as many each time, 6 % of the first 2,000 were narrow, now 2 %.
SOONEST, LATEST = 64, 1024
AGAIN = 16
# Sizes that are compared with each other, by seconds per element, differ by less than 20 %.
SIZES_PER_OCTAVE = 4

_Session = TypeVar("_Session")


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores that graphs on the host share.

    Attributes:
        count: how many.
        share: threads of a run beside others.
    """

    count: int
    share: int = 1


def _last() -> deque[float]:
    return deque(maxlen=KEPT_TIMES)


@dataclass(slots=True)
class _Size:
    """The last runs of about one size, seconds per element.

    Attributes:
        wide: which kind its runs are, but for trials.
        left: runs until the next trial begins; of a trial below 0, where -1 is its last.
        gap: runs between the last trial and the next.
        elements: of the last run.
    """

    wide: bool = True
    left: int = SOONEST
    gap: int = SOONEST
    elements: int = 1
    times: dict[bool, deque[float]] = field(default_factory=lambda: {True: _last(), False: _last()})

    def begin(self) -> tuple[bool, bool]:
        """Return whether the next run is wide, and whether its time counts."""
        self.left -= 1
        if self.left < -TRIAL:
            self._decide()
        trying = self.left < 0
        return self.wide != trying, not trying or self.left < -1

    def take(self, seconds: float, elements: int, *, wide: bool) -> None:
        """Note how long a run took, and of how many elements it was."""
        self.elements = max(1, elements)
        self.times[wide].append(seconds / self.elements)

    def _decide(self) -> None:
        """End a trial: keep to the kind that is faster, and look again sooner where it changed."""
        shortest = {kind: min(times, default=math.inf) for kind, times in self.times.items()}
        least = max(shortest[True] * MIN_GAIN, shortest[True] + MIN_GAIN_S / self.elements)
        wide = least <= shortest[False]
        self.gap = min(4 * self.gap, LATEST) if wide == self.wide else AGAIN
        self.wide, self.left = wide, self.gap


@dataclass(slots=True)
class _Timed(Generic[_Session]):
    """A session within which a run of `elements` is timed; one that fails tells nothing."""

    session: _Session
    size: _Size
    wide: bool
    elements: int
    started_s: float = 0.0

    def __enter__(self) -> _Session:
        self.started_s = time.perf_counter()
        return self.session

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            seconds = time.perf_counter() - self.started_s
            self.size.take(seconds, self.elements, wide=self.wide)


class ThreadChoice(Generic[_Session]):
    """What one graph runs on: its narrow session, or, where a run is alone, a wide one.

    The wide session is opened in the background when a run is alone for the first time.

    Args:
        cores: shared by all graphs of the device.
        threads: of a run, as in `GraphSource`; only 0 leaves a choice, where there are more cores
            than a run's share.
        narrow: has a run's share of the cores; from several threads at once.
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
        self._narrow = narrow
        self._opened = Background(
            open_wide if threads == 0 and cores.count > cores.share else None,
            name="wide",
            without="runs that are alone use as many threads as others",
        )
        self._freeing = freeing
        self._sizes: dict[int, _Size] = {}

    def session(self, elements: int, *, exclusive: bool) -> AbstractContextManager[_Session]:
        """Return the session for a run of `elements` input elements, to be entered for it.

        `exclusive` as in `Graph.run`.
        """
        if not exclusive or (wide := self._ready()) is None:
            return nullcontext(self._narrow)
        kind = _class_of(elements)
        size = self._sizes.get(kind) or self._sizes.setdefault(kind, _Size())
        use_wide, counts = size.begin()
        session = wide if use_wide else self._narrow
        return _Timed(session, size, use_wide, elements) if counts else nullcontext(session)

    def close(self) -> None:
        """Free both sessions, after waiting for one that is being opened."""
        self._opened.wait()
        with self._freeing():
            self._opened.close()
            del self._narrow

    @property
    def _wide(self) -> _Session | None:
        return self._opened.value

    def _ready(self) -> _Session | None:
        """Return the wide session; it is opened in the background if that was not done yet."""
        if self._wide is None:
            self._opened.begin()
        return self._wide


def _class_of(elements: int) -> int:
    """Return the number of the sizes that count as one with this one."""
    return round(math.log2(max(1, elements)) * SIZES_PER_OCTAVE)


def num_elements(inputs: Mapping[str, Array]) -> int:
    """Return the number of input elements, by which sizes of runs are compared."""
    return sum([array.size for array in inputs.values()])
