"""A graph that is tried outside of traffic: few runs, each one once, in a bounded time."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ge_backend.errors import GeError, GraphFailed
from ge_backend.executor.client.session import Session
from ge_backend.model.layout.validate import WELL_KNOWN
from ge_backend.serving.assumptions.comparison import run_once
from ge_backend.serving.assumptions.made_up import MIN_BOUND, Blank, filled_in
from ge_backend.serving.warmup.shaped import MAX_BYTES, small
from ge_backend.tensors import Array, Shape, TensorSpec

__all__ = ["OutOfTime", "Trial", "Untestable"]

# A graph of images that takes a third of a second for each is tested in 8 s; one that takes longer
# gains little from rows side by side.
BUDGET_S = 10.0
# What ids are below, once the graph is known to run: as many rows as any table of use has.
BOUND = 64


class Untestable(Exception):
    """Nothing can be found out, and why; caught where the verdict is made."""


class OutOfTime(Untestable):
    """There is no time left for it: the graph is slow, or the machine busy."""


class Trial:
    """Runs a graph on made-up values.

    Args:
        session: runs any shape, and has nothing else in flight.
        specs: the graph's inputs, none of texts.
        kinds: by input, what it holds, as `InputLayout.made`; others are what clients choose.
        numbers: by input of the kind `number`, that number.

    Attributes:
        bounds: by input of whole numbers that clients choose, what they are below.
    """

    def __init__(
        self,
        session: Session,
        specs: tuple[TensorSpec, ...],
        kinds: Mapping[str, str],
        numbers: Mapping[str, float],
    ) -> None:
        self.session = session
        self._specs = specs
        self._kinds = kinds
        self._numbers = numbers
        self._ends_s = time.monotonic() + BUDGET_S
        self._longest_s = 0.0
        self._known: dict[tuple[object, ...], dict[str, Array] | None] = {}
        self.bounds = {
            blank.name: MIN_BOUND
            for blank in self._blanks({spec.name: () for spec in specs})
            if blank.whole
        }

    @property
    def has_large_indices(self) -> bool:
        """Whether a whole number that clients choose may be too large for what it points into.

        ONNX Runtime refuses such a run; OpenVINO answers it with zeros, or anything.
        """
        return any(bound > MIN_BOUND for bound in self.bounds.values())

    def values(
        self,
        shapes: Mapping[str, Shape],
        seed: int = 0,
        scale: float = 1.0,
        *,
        small_indices: bool = False,
    ) -> dict[str, Array]:
        """Return a value for each input, of these shapes; the same ones at every call.

        Real numbers are multiplied by `scale`. Small indices are within whatever has two rows.
        """
        bounds = dict.fromkeys(self.bounds, MIN_BOUND) if small_indices else self.bounds
        values = filled_in(self._blanks(shapes), bounds, seed)
        if scale != 1:
            for name, array in values.items():
                if array.dtype.kind == "f":
                    values[name] = (scale * array).astype(array.dtype)
        return values

    def raise_bounds(self, shapes: Mapping[str, Shape]) -> None:
        """Let ids be as different as the graph takes them in these shapes, in which it runs."""
        least = self.bounds
        self.bounds = dict.fromkeys(least, BOUND)
        if not least or self.run(shapes) is not None:
            return
        self.bounds = dict(least)
        for name in least if len(least) > 1 else ():
            self.bounds[name] = BOUND
            if self.run(shapes) is None:
                self.bounds[name] = least[name]

    def run(self, shapes: Mapping[str, Shape]) -> dict[str, Array] | None:
        """Return the outputs for made-up values of these shapes.

        None where the graph refuses them, or they do not fit: those are not made.

        Raises:
            Untestable: its time is used up, or the executor is.
        """
        key = (*sorted(shapes.items()), *sorted(self.bounds.items()))
        if key not in self._known:
            fits = self.fits(shapes)
            self._known[key] = self.run_on(self.values(shapes)) if fits else None
        return self._known[key]

    def fits(self, shapes: Mapping[str, Shape]) -> bool:
        """Whether values of these shapes may be made."""
        return small((blank.dtype, blank.shape) for blank in self._blanks(shapes))

    def run_on(self, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """As `run`, on values of the caller's."""
        self.spend()
        if sum(array.nbytes for array in inputs.values()) > MAX_BYTES:
            return None
        began_s = time.monotonic()
        try:
            return run_once(self.session, inputs)
        except GraphFailed:
            return None
        except GeError as error:
            raise Untestable(str(error)) from error
        finally:
            self._longest_s = max(self._longest_s, time.monotonic() - began_s)

    def spend(self) -> None:
        """See that there is time left for a run as long as the longest.

        Raises:
            OutOfTime: there is none.
        """
        if time.monotonic() + self._longest_s > self._ends_s:
            raise OutOfTime(f"not done within {BUDGET_S:g} s")

    def extend(self) -> None:
        """Give it as much time again, for what the model's owner wants to be run."""
        self._ends_s += BUDGET_S

    def _blanks(self, shapes: Mapping[str, Shape]) -> list[Blank]:
        return [
            Blank(
                name=spec.name,
                dtype=spec.dtype,
                shape=shapes[spec.name],
                kind=self._kinds.get(spec.name, WELL_KNOWN.get(spec.name, "")),
                fill=self._numbers.get(spec.name, 0.0),
            )
            for spec in self._specs
        ]
