"""Whether a row's answer is the same whatever runs beside it; else requests run one by one.

Unequal rows run together, and each alone. Sets, softmax or a mean over the batch, batch
normalisation in training mode: their rows belong together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ge_backend.model.config.sequence_batching import State
from ge_backend.serving.assumptions.comparison import apart
from ge_backend.serving.assumptions.lengths import Lengths
from ge_backend.serving.assumptions.trial import Trial, Untestable
from ge_backend.serving.warmup.verdict import FAILS, HOLDS, Verdict
from ge_backend.tensors import Array, TensorSpec

__all__ = ["rows_verdict", "states_verdict"]

ROWS = 3
# What real numbers are multiplied by: what large ones saturate, small ones show.
DRAWS = (1.0, 0.1)
# By how much more rows have to differ than one answer from the next, of a graph of changing ones.
AGAIN = 3.0
STEPS = 3
HOW = "three rows together, and each alone"
ALONE = "each request runs by itself, all its rows together; 'assume: rows' batches them"


def rows_verdict(
    trial: Trial, lengths: Lengths, outputs: Sequence[TensorSpec], tolerance: float
) -> Verdict:
    """Return the verdict on rows.

    Args:
        trial: of the graph.
        lengths: with an axis of rows.
        outputs: those that clients get, and states; those that do not begin with the rows, or have
            these elsewhere, are not looked at.
        tolerance: of real numbers, as a part of an output's largest one.

    Raises:
        Untestable: the graph does not run so, or answers one input in several ways.
    """
    return _verdict("rows", trial, lengths, outputs, tolerance, ())


def states_verdict(
    trial: Trial,
    lengths: Lengths,
    outputs: Sequence[TensorSpec],
    tolerance: float,
    states: Sequence[State],
) -> Verdict:
    """Return the verdict on states: as `rows_verdict`, over some steps, of all outputs."""
    return _verdict("states", trial, lengths, outputs, tolerance, states)


def _verdict(
    name: str,
    trial: Trial,
    lengths: Lengths,
    outputs: Sequence[TensorSpec],
    tolerance: float,
    states: Sequence[State],
) -> Verdict:
    places = {spec.name: spec.axes.index(lengths.batch) for spec in _with_rows(outputs, lengths)}
    inputs = {
        spec.name: spec.axes.index(lengths.batch) for spec in _with_rows(lengths.inputs, lengths)
    }
    looked_at = [spec for spec in outputs if spec.name in places]
    steps = STEPS if states else 1
    worst, said = 0.0, ""
    for scale in DRAWS if any(spec.dtype.numpy.kind == "f" for spec in lengths.inputs) else (1.0,):
        values = trial.values(lengths.shapes(lengths.sizes(ROWS)), scale=scale)
        together = _stepped(trial, values, states, steps)
        off, text = 0.0, ""
        for row in range(ROWS):
            one = _stepped(trial, _row(values, inputs, row), states, steps)
            found = apart(one, _row(together, places, row), looked_at, tolerance)
            off, text = max(off, found[0]), text or found[1]
        if text:
            again, _ = apart(together, _stepped(trial, values, states, steps), looked_at, tolerance)
            if again > tolerance and off < AGAIN * again:
                raise Untestable("it answers one input in several ways")
        worst, said = max(worst, off), said or text
    return Verdict(
        assumption=name,
        tested=HOW if not states else f"{steps} steps of three sequences together, and each alone",
        figure=said or f"{worst:.1g}",
        verdict=FAILS if said else HOLDS,
        consequence=ALONE if said else "",
    )


def _stepped(
    trial: Trial, values: Mapping[str, Array], states: Sequence[State], steps: int
) -> dict[str, Array]:
    """Return the outputs of the last of some runs; each begins with the states of the one before.

    Raises:
        Untestable: the graph refuses one.
    """
    given, outputs = dict(values), dict[str, Array]()
    for _ in range(steps):
        answer = trial.run_on(given)
        if answer is None:
            raise Untestable("the graph does not run with one row")
        outputs = answer
        given |= {state.input: outputs[state.output] for state in states if state.output in outputs}
    return outputs


def _with_rows(specs: Iterable[TensorSpec], lengths: Lengths) -> list[TensorSpec]:
    return [spec for spec in specs if lengths.batch in spec.axes]


def _row(arrays: Mapping[str, Array], places: Mapping[str, int], row: int) -> dict[str, Array]:
    """Return the arrays with one row of those that have rows, by the place of these."""
    return {
        name: array.take([row], places[name]) if name in places else array
        for name, array in arrays.items()
    }
