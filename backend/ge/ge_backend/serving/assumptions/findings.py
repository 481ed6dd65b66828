"""What is found out about a graph, whatever is served of it: its axes, and its outputs' sizes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ge_backend.executor.client.session import Session
from ge_backend.executor.protocol.codec import Codec
from ge_backend.model.config.declared import Declared
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.sequence_tensors import placed_states
from ge_backend.model.layout.validate import with_axes
from ge_backend.serving.assumptions.kept import keep, kept_key, remembered
from ge_backend.serving.assumptions.lengths import (
    SCALES,
    Lengths,
    fixed_sizes,
    found_lengths,
    named,
)
from ge_backend.serving.assumptions.trial import OutOfTime, Trial, Untestable
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.verdict import FAILS, HOLDS, LATE, NOT_TESTED, TAKEN, Verdict
from ge_backend.tensors import Shape, Signature, TensorSpec

__all__ = ["Findings", "found", "trial_of"]

log = logging.getLogger(__name__)

# Of the sizes that lengths are tried at, this many steps up is much larger.
LARGER = 2
NO_BOUNDS: Mapping[str, int] = {}
HOW = "runs with a size of its own for each axis"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """A graph as it was found to be.

    Attributes:
        signature: its tensors, named and sized as it runs; as the file has them where nothing could
            be found out.
        lengths: how sizes are chosen at which it runs; None where none is known.
        bounds: by input of whole numbers, what they are below in runs with made-up values.
        verdicts: of `axes` and `outputs`.
    """

    signature: Signature
    lengths: Lengths | None = None
    bounds: Mapping[str, int] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()

    @property
    def late(self) -> bool:
        """Whether there was no time to find them out."""
        return any(verdict.late for verdict in self.verdicts)


FINDINGS = Codec((Findings,))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ObservedRun:
    """One run: the sizes of its axes, by name, and the shapes of its outputs."""

    sizes: Mapping[str, int]
    shapes: Mapping[str, Shape]


def found(config: ModelConfig, session: Session, store: Store, *, batched: bool | None) -> Findings:
    """Return what is found out about a graph, or was at an earlier start.

    Args:
        config: the model's, complete or not.
        session: with its graph, and nothing else in flight.
        store: keeps what is found.
        batched: whether tensors begin with a batch; None where that is to be found out, too.
    """
    signature = session.signature
    if not signature.inputs:
        signature = Declared.of(config).signature
    reason = _untestable(config, session, signature)
    if reason:
        end = TAKEN if "axes" in config.assume else NOT_TESTED
        both = (_verdict(name, end, tested=reason) for name in ("axes", "outputs"))
        return Findings(signature=session.signature, verdicts=tuple(both))

    def find() -> Findings:
        findings = _found(config, session, with_axes(signature, config), batched=batched)
        if batched is None and findings.lengths is not None:
            asked = bool(findings.lengths.batch)
            keep(store, _key(config, session, batched=asked), FINDINGS, findings)
        for verdict in findings.verdicts:
            if not verdict.holds:
                log.info("%s", verdict.line())
        return findings

    return remembered(store, _key(config, session, batched=batched), FINDINGS, find)


def trial_of(
    config: ModelConfig,
    session: Session,
    signature: Signature,
    bounds: Mapping[str, int] = NO_BOUNDS,
) -> Trial:
    """Return what runs a graph on made-up values; `bounds` are those of its findings."""
    made = {name: how.partition(":") for name, how in config.generate.items()}
    trial = Trial(
        session,
        signature.inputs,
        kinds={name: how for name, (how, _, _) in made.items()},
        numbers={name: float(text) for name, (how, _, text) in made.items() if how == "number"},
    )
    trial.bounds.update(bounds)
    return trial


def _untestable(config: ModelConfig, session: Session, signature: Signature) -> str:
    """Return why a graph's axes are not looked for; "" where they are."""
    free = any(-1 in spec.dims for spec in signature.inputs)
    shapes = session.shape_policy
    reasons: tuple[tuple[bool, str], ...] = (
        ("axes" in config.assume, "the parameter 'assume' names it"),
        (config.placement.kind == "null", "the device computes nothing"),
        (shapes.prepared or bool(shapes.fixed), "only prepared shapes run"),
        (config.concatenate, "inputs are concatenated"),
        (any(spec.dtype.name == "BYTES" for spec in signature.inputs), "it takes texts"),
        (not free, "every size is fixed"),
    )
    return next((text for so, text in reasons if so), "")


def _key(config: ModelConfig, session: Session, *, batched: bool | None) -> list[str]:
    signature = session.signature
    names = [spec.name for spec in (*signature.inputs, *signature.outputs)]
    silent = () if signature.inputs else (*config.inputs, *config.outputs)
    fixed = fixed_sizes(signature.inputs, config.inputs, batched=bool(config.max_batch_size))
    states = () if config.sequence is None else config.sequence.states
    given = [sorted(each.items()) for each in (config.axes, config.generate)]
    return kept_key(config, session, "axes", batched, names, given, states, silent, fixed)


def _found(
    config: ModelConfig, session: Session, signature: Signature, *, batched: bool | None
) -> Findings:
    trial = trial_of(config, session, signature)
    try:
        states = {state.input: state.axis for state in placed_states(config, signature)}
        lengths = found_lengths(
            trial,
            signature,
            batched=batched,
            given=config.axes.keys(),
            fixed=fixed_sizes(signature.inputs, config.inputs, batched=bool(config.max_batch_size)),
            states=states,
        )
        if lengths is None:
            raise Untestable("the graph takes no made-up input")
        seen = _seen(trial, lengths)
    except Untestable as error:
        end = LATE if isinstance(error, OutOfTime) else NOT_TESTED
        verdicts = [_verdict(name, end, tested=str(error)) for name in ("axes", "outputs")]
        return Findings(signature=signature, verdicts=tuple(verdicts))
    known = _fitted(signature, lengths, seen, config.axes.keys())
    verdicts = [
        _compared("axes", signature.inputs, known.inputs),
        _compared("outputs", signature.outputs, known.outputs),
    ]
    return Findings(signature=known, lengths=lengths, bounds=trial.bounds, verdicts=tuple(verdicts))


def _seen(trial: Trial, lengths: Lengths) -> list[_ObservedRun]:
    """Return runs at some sizes of every axis, the last ones larger; of those that the graph takes.

    What is divided by a stride is one and the same for small sizes.
    """
    larger = replace(lengths, scale=min(lengths.scale + LARGER, len(SCALES) - 1))
    seen: list[_ObservedRun] = []
    for known, rows, first in ((lengths, 2, 0), (lengths, 3, 1), (larger, 1, 0)):
        sizes = known.sizes(rows, first)
        try:
            outputs = trial.run(known.shapes(sizes))
        except Untestable:
            if not seen:
                raise
            break
        if outputs is not None:
            shapes = {name: array.shape for name, array in outputs.items()}
            seen.append(_ObservedRun(sizes=sizes, shapes=shapes))
    return seen


def _compared(name: str, said: tuple[TensorSpec, ...], known: tuple[TensorSpec, ...]) -> Verdict:
    """Return the verdict on what the file says of tensors, by what is known of them."""
    others = [
        f"{new.name!r} is {new.describe()}, not {old.describe()}"
        for old, new in zip(said, known, strict=True)
        if not _alike(old, new)
    ]
    if not others:
        return _verdict(name, HOLDS)
    return _verdict(name, FAILS, consequence=f"served as it runs: {'; '.join(others)}")


def _alike(old: TensorSpec, new: TensorSpec) -> bool:
    """Whether the file says as much: an axis that it gives no name may have its own."""
    own = tuple(f"{new.name}.{at}" for at in range(len(new.dims)))
    return old.dims == new.dims and all(
        one == other or (one in ("", "?") and other == alone)
        for one, other, alone in zip(old.axes, new.axes, own, strict=True)
    )


def _verdict(name: str, verdict: str, *, tested: str = HOW, consequence: str = "") -> Verdict:
    return Verdict(
        assumption=name, tested=tested, figure="", verdict=verdict, consequence=consequence
    )


def _fitted(
    signature: Signature, lengths: Lengths, seen: Sequence[_ObservedRun], given: Collection[str]
) -> Signature:
    """Return the signature with inputs and outputs as they were seen.

    A file may declare sizes of outputs otherwise: engines only warn of it.

    An output's dimension has the name of an axis that it followed in all runs, is fixed where it
    never changed and the file does not leave it free, and has a name of its own else.

    Args:
        signature: as the file, or the configuration, has it.
        lengths: the inputs' axes, as found.
        seen: runs of different sizes.
        given: outputs whose names the configuration gives: those are not doubted.
    """
    kept = {*given, *(s.name for s in signature.outputs if {*s.axes} & signature.lengths.keys())}
    outputs = tuple(
        spec if spec.name in kept else _fitted_output(spec, lengths, seen)
        for spec in signature.outputs
    )
    limits, least = dict(signature.axis_limits), dict(signature.axis_least)
    for old, new in zip(signature.inputs, lengths.inputs, strict=True):
        for before, after in zip(old.axes, new.axes, strict=True):
            if before in signature.axis_limits and after != before:
                limits[after] = min(limits.get(after, limits[before]), limits[before])
            if before in signature.axis_least and after != before:
                least[after] = max(least.get(after, 1), least[before])
    return replace(
        signature, inputs=lengths.inputs, outputs=outputs, axis_limits=limits, axis_least=least
    )


def _fitted_output(spec: TensorSpec, lengths: Lengths, seen: Sequence[_ObservedRun]) -> TensorSpec:
    shapes = [run.shapes[spec.name] for run in seen if spec.name in run.shapes]
    ranks = {len(shape) for shape in shapes}
    if len(ranks) != 1:
        return spec
    rank = ranks.pop()
    columns = [[shape[at] for shape in shapes] for at in range(rank)]
    if rank != len(spec.dims):  # what never changed is fixed then, which takes two runs to see
        fixed = [sizes[0] if len(sizes) > 1 and len({*sizes}) == 1 else -1 for sizes in columns]
        spec = replace(spec, dims=tuple(fixed), axes=("",) * rank)
    dims, axes = list(spec.dims), list(spec.axes)
    for at, sizes in enumerate(columns):
        if dims[at] < 0 or {*sizes} != {dims[at]}:
            dims[at], axes[at] = -1, _followed(sizes, seen, first=lengths.batch, said=axes[at])
    return named(replace(spec, dims=tuple(dims), axes=tuple(axes)))


def _followed(sizes: Sequence[int], seen: Sequence[_ObservedRun], *, first: str, said: str) -> str:
    """Return the axis that had these sizes, the one that the file names before others; else "".

    Where none had, a name that no input has is kept.
    """
    known = [
        name
        for name in seen[0].sizes
        if all(run.sizes[name] == size for run, size in zip(seen, sizes, strict=True))
    ]
    if known:
        return next((name for name in (said, first) if name in known), known[0])
    return "" if said in seen[0].sizes else said
