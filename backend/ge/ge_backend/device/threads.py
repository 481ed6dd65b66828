"""Whether a run that has the device for itself gains from all cores: decided by measurement."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from ge_backend.tensors import Array

__all__ = ["ThreadChoice", "num_elements"]

# A run on all cores takes them from the client and the server on the same machine, so a small
# gain is none.
LEAST_GAIN = 1.15
ROUNDS = 5
BUDGET_S = 0.4

Run = Callable[[], object]


class ThreadChoice:
    """Compares one-thread (narrow) with all-core (wide) runs, by the size of the input.

    Measured at warm-up; afterwards each run follows the measured size that is nearest to its own.
    Before any measurement every run is narrow.
    """

    def __init__(self) -> None:
        self._wide: dict[int, bool] = {}

    @property
    def ever_wide(self) -> bool:
        """Whether some measured size gained."""
        return any(self._wide.values())

    def measure(self, elements: int, narrow: Run, wide: Run) -> None:
        """Run both ways in turn, and record whether the best wide run is clearly the shorter.

        In turn, so that a busy moment of the machine hits both; the best of each, because what
        others do on the machine can only lengthen a run.
        """
        # The first runs allocate: they count only where they are so long that it does not matter.
        first = [_seconds(narrow), _seconds(wide)]
        best = first if sum(first) > BUDGET_S else [math.inf, math.inf]
        ends = time.perf_counter() + BUDGET_S
        for _ in range(ROUNDS if best is not first else 0):
            best = [min(known, _seconds(run)) for known, run in zip(best, (narrow, wide))]  # noqa: B905 - two of each
            if time.perf_counter() > ends:
                break
        # Replaced as a whole: lanes read it meanwhile.
        self._wide = {**self._wide, elements: best[0] >= best[1] * LEAST_GAIN}

    def wide(self, elements: int) -> bool:
        """Return whether an exclusive run of this many input elements should use all cores."""
        measured = self._wide
        if not measured:
            return False
        size = math.log(max(1, elements))
        return measured[min(measured, key=lambda known: abs(math.log(max(1, known)) - size))]


def num_elements(inputs: Mapping[str, Array]) -> int:
    """Return the number of input elements, by which sizes of runs are compared."""
    return sum(array.size for array in inputs.values())


def _seconds(run: Run) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
