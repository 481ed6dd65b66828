"""Whether padding a row changes its answer, and what masks are padded with so that it does not.

A short row and a long one run together as they would in traffic, padded to one size, and each runs
alone. A mask that multiplies is padded with 0; one that is added to scores with a large negative
number; one that says what to ignore with 1: which it is a name does not say, so each is tried.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ge_backend.errors import GeError, GraphFailed, InvalidRequest
from ge_backend.executor.protocol.arena import aligned
from ge_backend.model.layout.layout import InputLayout, Layout
from ge_backend.serving.assumptions.checks import by_difference, differences
from ge_backend.serving.assumptions.comparison import Difference, apart, run_staged, worst_of
from ge_backend.serving.assumptions.lengths import Lengths
from ge_backend.serving.assumptions.samples import Sample, rows_of
from ge_backend.serving.assumptions.trial import Trial, Untestable
from ge_backend.serving.batching.plan import RowSpan, SubBatch
from ge_backend.serving.batching.request import Request, check_request
from ge_backend.serving.batching.split import split
from ge_backend.serving.batching.stage import stage, sub_batch_shapes
from ge_backend.serving.warmup.verdict import Verdict
from ge_backend.tensors import Array, Shape, float32_to_bf16

__all__ = ["MEANINGS", "Meaning", "padding_verdict"]

# How much longer the long row is.
LONGER = 2
# What the real numbers of short rows are: of both signs, as zeros change no largest number among
# positive ones; and small, as attention to large ones hides the rest.
FACTORS = (-1.0, 0.1)
HOW = "short rows beside a long one, and each alone"
UNPADDED = "only requests of equal lengths run together; 'assume: padding' pads them"
# More masks than that are not told apart.
MAX_TRIED = 27


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a mask holds: where there is something, and in padding."""

    real: float
    padding: float


# The field's first: 1 is something, 0 is padding. Added to scores. 1 is what is to be ignored.
MEANINGS = (Meaning(1.0, 0.0), Meaning(0.0, -10000.0), Meaning(0.0, 1.0))


def padding_verdict(
    trial: Trial,
    lengths: Lengths,
    layout: Layout,
    given: Mapping[str, float],
    tolerance: float,
    samples: Sequence[Sample] = (),
) -> tuple[Verdict, Layout, tuple[str, ...]]:
    """Return the verdict on padding, the layout with masks as they are, and axes not to be padded.

    Args:
        trial: of the graph.
        lengths: at which it runs.
        layout: with padded axes.
        given: what the configuration pads inputs with: that is not looked for.
        tolerance: of real numbers, as a part of an output's largest one.
        samples: of the model, padded as well.

    Raises:
        Untestable: rows do not run alone.
    """
    pad = _Padding(trial, lengths, tolerance, samples)
    tried = itertools.islice(_meanings(layout, given), MAX_TRIED)
    said = ""
    for meanings in tried:
        meant = _with(layout, meanings)
        worst, text = pad.changes(meant, meanings, layout.axes)
        if not text:
            note = _fill_note(layout, meant)
            return by_difference("padding", HOW, samples, (worst, ""), UNPADDED, note), meant, ()
        said = said or text
    usual = next(_meanings(layout, given))
    wrong = tuple(axis for axis in layout.axes if pad.changes(layout, usual, (axis,))[1])
    verdict = by_difference("padding", HOW, samples, (math.inf, said), UNPADDED)
    return verdict, layout, wrong or layout.axes


def _fill_note(before: Layout, after: Layout) -> str:
    others = [
        f"{new.name} is padded with {new.fill:g}"
        for old, new in zip(before.inputs, after.inputs, strict=True)
        if old != new
    ]
    return ", ".join(others)


Meanings = Mapping[str, Meaning]


def _meanings(layout: Layout, given: Mapping[str, float]) -> Iterator[Meanings]:
    """Yield what masks may mean, by their names: the usual first, others one after another."""
    bare = [item for item in layout.inputs if _is_bare(item, layout)]
    called = [item for item in bare if item.made == "mask" or _called_mask(item)]
    others = [item for item in bare if item not in called and item is not layout.inputs[0]]
    for masks in (called, *([*called, other] for other in others if not other.made)):
        choices = [_possible(item, given) for item in masks]
        for chosen in itertools.product(*choices):
            yield {item.name: meaning for item, meaning in zip(masks, chosen, strict=True)}


def _is_bare(item: InputLayout, layout: Layout) -> bool:
    """Whether an input has a value for each place of padded axes, and no more."""
    padded = any(0 <= axis < len(layout.axes) for axis in item.axes)
    bare = all(axis >= 0 or dim == 1 for dim, axis in zip(item.dims, item.axes, strict=True))
    return padded and bare and not item.source


def _called_mask(item: InputLayout) -> bool:
    return not item.made and ("mask" in item.name.lower() or item.dtype.name == "BOOL")


def _possible(item: InputLayout, given: Mapping[str, float]) -> list[Meaning]:
    """Return what an input can mean, by its type, and by what the configuration pads it with."""
    if item.name in given or item.dtype.name == "BF16":
        return [Meaning(1.0, item.fill), Meaning(0.0, item.fill)]
    negative = item.dtype.numpy.kind in "fi" and item.dtype.name != "INT8"
    return [meaning for meaning in MEANINGS if meaning.padding >= 0 or negative]


def _with(layout: Layout, meanings: Meanings) -> Layout:
    """Return the layout in which masks have these meanings."""
    new = {
        item.name: replace(item, fill=meanings[item.name].padding, real=meanings[item.name].real)
        for item in layout.inputs
        if item.name in meanings
    }
    return replace(layout, inputs=tuple(new.get(item.name, item) for item in layout.inputs))


def _stored(item: InputLayout, value: float) -> float:
    return float(float32_to_bf16(np.array([value]))[0]) if item.dtype.name == "BF16" else value


def _with_common(sent: Mapping[str, Array], layout: Layout) -> dict[str, Array]:
    """Return what a client sends: with rows also where the graph has one value for all."""
    dims = {i.name: i.dims for i in layout.inputs if i.common is not None and layout.batched}
    return {n: array.reshape(1, *dims[n]) if n in dims else array for n, array in sent.items()}


class _Padding:
    """Runs a short and a long row together and alone."""

    def __init__(
        self, trial: Trial, lengths: Lengths, tolerance: float, samples: Sequence[Sample]
    ) -> None:
        self._trial = trial
        self._lengths = lengths
        self._tolerance = tolerance
        self._samples = samples

    def changes(self, layout: Layout, meanings: Meanings, axes: Sequence[str]) -> Difference:
        """Return how much padding these axes changes answers."""
        found = self._made_up(layout, meanings, axes)
        padded = functools.partial(self._padded, layout, axes)
        of_samples = differences(self._sampled(layout), padded, "a sample is not padded")
        return found if found[1] else worst_of((found, *of_samples))

    def _sampled(self, layout: Layout) -> Iterator[dict[str, Array]]:
        """Yield what clients send of each row of the samples."""
        sent = {item.name for item in layout.inputs if not item.made}
        places = self._lengths.places(self._lengths.inputs) if layout.batched else {}
        for sample in self._samples:
            given = {n: sample.inputs[n] for n in sample.inputs if n in sent | sample.given}
            for row in range(sample.sizes[self._lengths.batch] if places else 1):
                yield rows_of(given, places, [row])

    def _padded(self, layout: Layout, axes: Sequence[str], sent: Mapping[str, Array]) -> Difference:
        """Return how much padding these axes changes the answer to one row."""
        request = check_request(0, _with_common(sent, layout), layout)
        sizes = tuple(
            min(LONGER * size, layout.limits.get(axis, LONGER * size))
            if axis in axes and axis not in layout.sizes
            else size
            for axis, size in zip(layout.axes, request.sizes, strict=True)
        )
        try:
            alone = self._run(layout, [request], request.sizes)[0]
        except GraphFailed as error:
            raise Untestable(f"it does not run alone: {error}") from error
        try:
            padded = self._run(layout, [request], sizes)[0]
        except GraphFailed as error:
            return math.inf, f"a padded sample does not run: {error}"
        return apart(alone, padded, layout.outputs, self._tolerance)

    def _made_up(self, layout: Layout, meanings: Meanings, axes: Sequence[str]) -> Difference:
        sizes = self._lengths.sizes(1)
        longer = {axis: LONGER * sizes[axis] for axis in axes if axis not in layout.sizes}
        try:
            requests = [self._request(layout, meanings, sizes, factor) for factor in FACTORS]
            long = self._request(layout, meanings, {**sizes, **longer}, 0.0)
        except InvalidRequest as error:
            raise Untestable(str(error)) from error
        if layout.batched:
            requests.append(long)
        try:
            alone = [self._run(layout, [one], one.sizes)[0] for one in requests]
        except GraphFailed as error:
            raise Untestable(f"a row does not run alone: {error}") from error
        together = requests if layout.batched else []
        try:
            padded = [
                answer
                for some in ([together] if together else [[one] for one in requests])
                for answer in self._run(layout, some, long.sizes)
            ]
        except GraphFailed as error:
            return math.inf, f"a padded row does not run: {error}"
        return worst_of(
            apart(one, other, layout.outputs, self._tolerance)
            for one, other in zip(alone, padded, strict=True)
        )

    def _request(
        self, layout: Layout, meanings: Meanings, sizes: Mapping[str, int], factor: float
    ) -> Request:
        """Return a made-up request of one row; masks have what stands for something.

        Real numbers are of one sign, times a factor; of both, as they come, where that is 0.
        """
        seed = (0.0, *FACTORS).index(factor)
        values = self._trial.values(self._lengths.shapes(sizes), seed=seed)
        sent: dict[str, Array] = {}
        for item in layout.inputs:
            array = values.get(item.name)
            if array is None or item.made:
                continue
            if factor and array.dtype.kind == "f":
                array = (factor * np.abs(array)).astype(array.dtype)
            if item.name in meanings:
                array = np.full_like(array, _stored(item, meanings[item.name].real))
            sent[item.name] = array
        return check_request(0, _with_common(sent, layout), layout)

    def _run(
        self, layout: Layout, requests: Sequence[Request], sizes: Shape
    ) -> list[dict[str, Array]]:
        """Return each request's outputs of one run of all, padded to these sizes.

        Raises:
            GraphFailed: the graph does not take that.
        """
        self._trial.spend()
        session, rows = self._trial.session, len(requests)
        spans = tuple(RowSpan(at, 0, 1) for at in range(rows))
        part = SubBatch(spans=spans, bucket=(rows, *sizes), rows=rows, cost_ns=0)
        shapes = sub_batch_shapes(part, requests, layout)
        states = self._states(layout, rows)
        session.reserve(shapes.nbytes + sum(aligned(array.nbytes) for array in states.values()))
        run = stage(shapes, requests, layout, session.arena)
        refs = list(run.inputs)
        for state in layout.states:
            array = states[state.input]
            ref = session.arena.place(state.input, state.dtype.name, array.shape, array.nbytes)
            session.arena.view(ref)[...] = array
            refs.append(ref)
        try:
            outputs = run_staged(session, replace(run, inputs=tuple(refs)))
        except GraphFailed:
            raise
        except GeError as error:
            raise Untestable(str(error)) from error
        return [
            {name: np.array(array) for name, array in piece.items()}
            for _, piece in split(part, requests, layout, outputs)
        ]

    def _states(self, layout: Layout, rows: int) -> dict[str, Array]:
        """Return the states of all rows, which are alike."""
        values = self._trial.values(self._lengths.shapes(self._lengths.sizes(1)))
        return {
            state.input: np.repeat(values[state.input], rows, state.axis)
            if layout.batched
            else values[state.input]
            for state in layout.states
        }
