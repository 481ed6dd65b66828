"""Whether a row's answer is the same whatever runs beside it; else requests run one by one.

Unequal rows run together, and each alone. Sets, softmax or a mean over the batch, batch
normalisation in training mode: their rows belong together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ge_backend.model.config.sequence_batching import State
from ge_backend.serving.assumptions.checks import by_difference, differences, in_time
from ge_backend.serving.assumptions.comparison import Difference, apart, worst_of
from ge_backend.serving.assumptions.lengths import Lengths
from ge_backend.serving.assumptions.samples import Sample, joined, rows_of
from ge_backend.serving.assumptions.trial import Trial, Untestable
from ge_backend.serving.warmup.verdict import Verdict
from ge_backend.tensors import Array, TensorSpec

__all__ = ["rows_verdict", "states_verdict"]

ROWS = 3
# What real numbers are multiplied by: what large ones saturate, small ones show.
DRAWS = (1.0, 0.1)
# By how much more rows have to differ than one answer from the next, of a graph of changing ones.
AGAIN = 3.0
STEPS = 3
HOW = "three rows together, and each alone"
OVER_STEPS = f"{STEPS} steps of three sequences together, and each alone"
ALONE = "each request runs by itself, all its rows together; 'assume: rows' batches them"


def rows_verdict(
    trial: Trial,
    lengths: Lengths,
    outputs: Sequence[TensorSpec],
    tolerance: float,
    samples: Sequence[Sample] = (),
) -> Verdict:
    """Return the verdict on rows.

    Args:
        trial: of the graph.
        lengths: with an axis of rows.
        outputs: those that clients get, and states; those that do not begin with the rows, or have
            these elsewhere, are not looked at.
        tolerance: of real numbers, as a part of an output's largest one.
        samples: of the model; each is looked at beside others of its sizes, and made-up rows.

    Raises:
        Untestable: the graph does not run so, or answers one input in several ways.
    """
    return _Rows(trial, lengths, outputs, tolerance, ()).verdict("rows", HOW, samples)


def states_verdict(
    trial: Trial,
    lengths: Lengths,
    outputs: Sequence[TensorSpec],
    tolerance: float,
    states: Sequence[State],
    samples: Sequence[Sample] = (),
) -> Verdict:
    """Return the verdict on states: as `rows_verdict`, over some steps, of all outputs."""
    rows = _Rows(trial, lengths, outputs, tolerance, states)
    return rows.verdict("states", OVER_STEPS, samples)


class _Rows:
    """Runs rows together and alone, over some steps where there are states."""

    def __init__(
        self,
        trial: Trial,
        lengths: Lengths,
        outputs: Sequence[TensorSpec],
        tolerance: float,
        states: Sequence[State],
    ) -> None:
        self._trial = trial
        self._lengths = lengths
        self._inputs = lengths.places(lengths.inputs)
        self._outputs = lengths.places(outputs)
        self._looked_at = [spec for spec in outputs if spec.name in self._outputs]
        self._tolerance = tolerance
        self._states = states

    def verdict(self, name: str, how: str, samples: Sequence[Sample]) -> Verdict:
        """Return the verdict, by made-up values and by samples."""
        found = worst_of(in_time(map(self._differs, self._made_up())))
        unfit = "rows of a sample are not compared"
        of_samples = differences(self._beside(samples), self._differs, unfit)
        found = found if found[1] else worst_of((found, *of_samples))
        return by_difference(name, how, samples, found, ALONE)

    def _made_up(self) -> Iterator[dict[str, Array]]:
        shapes = self._lengths.shapes(self._lengths.sizes(ROWS))
        real = any(spec.dtype.numpy.kind == "f" for spec in self._lengths.inputs)
        for scale in DRAWS if real else DRAWS[:1]:
            yield self._trial.values(shapes, scale=scale)
        if self._trial.has_large_indices:
            yield self._trial.values(shapes, small_indices=True)

    def _beside(self, samples: Sequence[Sample]) -> Iterator[dict[str, Array]]:
        """Yield samples of one size together, filled up to `ROWS` with made-up rows."""
        batch = self._lengths.batch
        for sample in joined(samples, self._lengths):
            made = self._trial.values(self._lengths.shapes({**sample.sizes, batch: ROWS}))
            rows = sample.sizes[batch]
            yield {
                name: np.concatenate([array, made[name].take(range(rows, ROWS), at)], at)
                if (at := self._inputs.get(name)) is not None
                else array
                for name, array in sample.inputs.items()
            }

    def _differs(self, values: Mapping[str, Array]) -> Difference:
        """Return how much rows differ beside each other, and a text, "" where they do not.

        A row that runs beside others and is refused alone differs, however much; of a graph that
        takes more rows at least it is repeated, as it is when it is served.

        Raises:
            Untestable: the graph does not run so, or answers one input in several ways.
        """
        together = self._stepped(values)
        if together is None:
            raise Untestable(f"the graph does not run with {ROWS} rows")
        off, text = worst_of(in_time(self._rows(values, together)))
        if text and (same := self._stepped(values)) is not None:
            again, _ = apart(together, same, self._looked_at, self._tolerance)
            if again > self._tolerance and off < AGAIN * again:
                raise Untestable("it answers one input in several ways")
        return off, text

    def _rows(
        self, values: Mapping[str, Array], together: Mapping[str, Array]
    ) -> Iterator[Difference]:
        """Yield how much each row differs from itself alone."""
        least = self._lengths.least.get(self._lengths.batch, 1)
        for row in range(ROWS):
            alone = self._stepped(rows_of(values, self._inputs, [row] * least))
            if alone is None:
                yield math.inf, "a row that runs beside others does not run alone"
                return
            one = rows_of(alone, self._outputs, [0])
            beside = rows_of(together, self._outputs, [row])
            yield apart(one, beside, self._looked_at, self._tolerance)

    def _stepped(self, values: Mapping[str, Array]) -> dict[str, Array] | None:
        """Return the last step's outputs; each begins with the states of the one before.

        None where the graph refuses one.
        """
        given, outputs = dict(values), dict[str, Array]()
        for _ in range(STEPS if self._states else 1):
            answer = self._trial.run_on(given)
            if answer is None:
                return None
            outputs = answer
            new = {s.input: outputs[s.output] for s in self._states if s.output in outputs}
            given |= new
        return outputs
