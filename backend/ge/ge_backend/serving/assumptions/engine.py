"""Whether the engine computes what the file says: its answers beside another engine's.

OpenVINO reads files that another engine is made for, and computes some of them otherwise: rows that
are shorter than others, or what is far along an axis. So both engines answer the same inputs: one
row and several unequal ones, short and beyond 256 positions.

What only OpenVINO reads, its own IR, is compared with itself: in BF16, and where the file rounds
to INT8, with the same file in FP32 and without what makes it fast.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ge_backend.device.base import PLAIN
from ge_backend.errors import GeError, GraphFailed, Unsupported
from ge_backend.executor.client.session import Session
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.validate import WELL_KNOWN
from ge_backend.serving.assumptions.checks import by_difference, in_time
from ge_backend.serving.assumptions.comparison import apart, quantises, run_once, worst_of
from ge_backend.serving.assumptions.findings import trial_of
from ge_backend.serving.assumptions.kept import kept_key
from ge_backend.serving.assumptions.lengths import Lengths
from ge_backend.serving.assumptions.samples import Sample, samples_of
from ge_backend.serving.assumptions.served import Served, with_verdict
from ge_backend.serving.assumptions.trial import Trial, Untestable
from ge_backend.serving.warmup.measure import release_of
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.verdict import Verdict
from ge_backend.tensors import Array, TensorSpec

__all__ = [
    "COMPARED_WITH",
    "Compared",
    "Reference",
    "check_engine",
    "compared",
    "with_engine_verdict",
    "wrong_answers",
]


@dataclass(frozen=True, slots=True)
class Other:
    """Who answers as the file says: an engine, and the precision that it does so in."""

    engine: str
    precision: str = "origin"

    def __str__(self) -> str:
        return f"{self.engine} in FP32 throughout" if self.precision == PLAIN else self.engine


# By the engine that is tested and how the file's name ends.
COMPARED_WITH: Mapping[tuple[str, str], Other] = {
    ("openvino", ".onnx"): Other("onnxruntime"),
    ("openvino", ".xml"): Other("openvino", PLAIN),
}
ALIKE = "no other engine reads an .xml file, and this one computes it in FP32"
# By how much answers may differ, as a part of an output's largest number: in FP32, in BF16, and
# where numbers are quantised, which a small difference on the way moves by a whole step.
CLOSE, ROUGH, STEPS = 1e-2, 0.1, 0.25
# Of `lengths.SCALES` the first whose sizes are beyond 256: BF16 tells no numbers apart there that
# are next to each other.
FAR = 3
LARGE = 1000
HOW = "one row and unequal rows, short and beyond 256, beside {}"

# Returns a model's graph on the engine of this name and in this precision, whatever its
# configuration names.
Reference: TypeAlias = Callable[[str, str], Session]


def with_engine_verdict(
    config: ModelConfig, session: Session, store: Store, judged: Served, reference: Reference
) -> Served:
    """Return what was found out, with the verdict on the engine where another one can be asked.

    Args:
        config: complete.
        session: with its graph, and nothing else in flight.
        store: keeps the verdict.
        judged: what was found out before.
        reference: opens the graph on another engine; closed here.
    """
    other = _other(session)
    if other is None:
        return judged

    def test(lengths: Lengths) -> Verdict:
        exact = config.precision == "origin" and not quantises(Path(session.source.path))
        if other.precision == PLAIN and exact:
            raise Untestable(ALIKE)
        return compared(config, session, judged, lengths).verdict(other, reference)

    # With newer releases of either it is tested anew.
    releases = map(release_of, (session.engine, other.engine))
    key = kept_key(config, session, "engine", judged.layout, judged.findings.lengths, *releases)
    return with_verdict(judged, "engine", config, store, key, test)


def wrong_answers(judged: Served) -> str:
    """Return how the engine's answers are others than the file says; "" where they are not."""
    found = (v for v in judged.verdicts if v.assumption == "engine" and not v.holds)
    return next((f"{verdict.figure} ({verdict.tested})" for verdict in found), "")


def check_engine(config: ModelConfig, session: Session, judged: Served) -> None:
    """See that the engine computes what the file says.

    Raises:
        Unsupported: it answers otherwise than the engine that the file is made for.
    """
    wrong, other = wrong_answers(judged), _other(session)
    if wrong and other is not None:
        way = "convert the model without quantisation"
        if other.engine != session.engine:
            way = f"set the parameter 'engine' to {other.engine!r}, with precision 'origin'"
        elif config.precision != "origin":
            way = "set the parameter 'precision' to 'origin'"
        raise Unsupported(
            f"{session.source.path}: {session.engine} in precision {config.precision!r} answers "
            f"otherwise than {other}: {wrong}; {way}, or 'assume' to 'engine' to serve it so"
        )


def _other(session: Session) -> Other | None:
    """Return who answers as the file says, where one does that is not what is tested."""
    return COMPARED_WITH.get((session.engine, Path(session.source.path).suffix))


def compared(config: ModelConfig, session: Session, judged: Served, lengths: Lengths) -> Compared:
    """Return what compares a graph's answers, at these lengths, with those of another session."""
    known = judged.findings
    trial = trial_of(config, session, known.signature, known.bounds)
    names = {output.name for output in judged.layout.outputs}
    return Compared(
        trial=trial,
        lengths=lengths,
        outputs=tuple(one for one in known.signature.outputs if one.name in names),
        counted=_counted(config, lengths),
        tolerance=_tolerance(session),
        samples=samples_of(config, trial, lengths),
    )


def _counted(config: ModelConfig, lengths: Lengths) -> dict[str, tuple[str, str]]:
    """Return by input that says what of a row is real how it does, and along which axis."""
    found = {}
    for spec in lengths.inputs:
        how, _, axis = config.generate.get(spec.name, WELL_KNOWN.get(spec.name, "")).partition(":")
        own = next((name for name in spec.axes if name in lengths.names), "")
        axis = axis or own or next(iter(lengths.names), "")
        if how in ("mask", "lengths") and axis:
            found[spec.name] = how, axis
    return found


def _tolerance(session: Session) -> float:
    if session.precision == "int8" or quantises(Path(session.source.path)):
        return STEPS
    return CLOSE if session.precision == "origin" else ROUGH


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What is compared.

    Attributes:
        trial: of the graph on the engine that is tested.
        lengths: at which it runs.
        outputs: those that clients get.
        counted: inputs that say what of a row is real: a `mask`, or its `lengths` along an axis.
        tolerance: of real numbers, as a part of an output's largest one.
        samples: of the model.
    """

    trial: Trial
    lengths: Lengths
    outputs: tuple[TensorSpec, ...]
    counted: Mapping[str, tuple[str, str]]
    tolerance: float
    samples: Sequence[Sample] = ()

    def verdict(self, of: Other, reference: Reference) -> Verdict:
        """Return whether the engine answers as another one does.

        Raises:
            Untestable: there is no such engine, or the two take no input in common.
        """
        try:
            other = reference(of.engine, of.precision)
        except GeError as error:
            raise Untestable(f"there is no {of.engine} to compare with: {error}") from error
        self.trial.extend()  # to open that one takes long
        with contextlib.closing(other):
            found = list(
                in_time(
                    apart(expected, answer, self.outputs, self.tolerance)
                    for expected, answer in self.answers(other)
                )
            )
        if not found:
            raise Untestable(f"{of} takes none of the made-up inputs")
        how, fails = HOW.format(of), f"it answers otherwise than {of}"
        return by_difference("engine", how, self.samples, worst_of(found), fails)

    def answers(self, other: Session) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
        """Yield what another session answers, and this one, to what both of them take."""
        for inputs in self.inputs():
            expected = _answers(other, inputs)
            found = None if expected is None else self.trial.run_on(inputs)
            if expected is not None and found is not None:
                yield expected, found

    def inputs(self) -> Iterator[dict[str, Array]]:
        """Yield made-up values of several shapes, with rows of unequal lengths, and the samples.

        Whole numbers that clients choose are once large, too, one input after the other: they may
        be positions. A table of fewer rows refuses them.
        """
        far = replace(self.lengths, scale=max(self.lengths.scale, FAR))
        for known, rows, first in (
            (self.lengths, 1, 0),
            (self.lengths, 3, 1),
            (far, 1, 1),
            (far, 2, 1),
        ):
            if self.trial.fits(known.shapes(known.sizes(rows, first))):
                yield self._values(known, rows, first)
        bounds = self.trial.bounds
        for name in bounds:
            self.trial.bounds = {**bounds, name: LARGE}
            yield self._values(self.lengths, 1, 2)
        self.trial.bounds = bounds
        for sample in self.samples:
            yield dict(sample.inputs)

    def _values(self, lengths: Lengths, rows: int, first: int) -> dict[str, Array]:
        sizes = lengths.sizes(rows, first)
        values = self.trial.values(lengths.shapes(sizes), seed=rows)
        return {**values, **self._real(values, sizes)}

    def _real(self, values: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
        """Return masks and lengths of rows of which each is shorter than the one before."""
        made = {}
        rows = sizes.get(self.lengths.batch, 1)
        for name, (kind, axis) in self.counted.items():
            size = sizes.get(axis, 0)
            real = np.array([max(1, size - at * size // rows) for at in range(rows)])
            value, shape = real, values[name].shape
            if kind == "mask":
                value = np.arange(size) < real[:, np.newaxis]
            if size and value.size == values[name].size:
                made[name] = value.astype(values[name].dtype).reshape(shape)
        return made


def _answers(session: Session, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
    try:
        return run_once(session, inputs)
    except GraphFailed:
        return None
    except GeError as error:
        raise Untestable(str(error)) from error
