"""A model as it is served: its layout, by what was found out about its graph."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ge_backend.errors import ConfigError
from ge_backend.executor.client.session import Session
from ge_backend.executor.protocol.codec import Codec
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.config.written import sets_ragged
from ge_backend.model.layout.layout import InputLayout, Layout, build_layout
from ge_backend.serving.assumptions.checks import checked
from ge_backend.serving.assumptions.comparison import quantises
from ge_backend.serving.assumptions.findings import Findings, found, trial_of
from ge_backend.serving.assumptions.kept import VERDICT, keep, kept, kept_key, remembered
from ge_backend.serving.assumptions.lengths import Lengths
from ge_backend.serving.assumptions.padding import padding_verdict
from ge_backend.serving.assumptions.rows import rows_verdict, states_verdict
from ge_backend.serving.assumptions.samples import samples_of
from ge_backend.serving.assumptions.trial import Untestable
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.verdict import Verdict

__all__ = ["Served", "check_declared", "keep_left_out", "served", "with_verdict"]

log = logging.getLogger(__name__)

# By how much answers may differ, as a part of an output's largest number: in FP32, in 16 bits, and
# where numbers are quantised by the largest of a run, so that rows touch each other.
EXACT, HALF, ROUGH = 2e-3, 3e-2, 0.15
# What rows of one run rest on.
JOINED = frozenset({"rows", "states"})
# Files that say what they are computed in, and are in FP32 by habit.
FILES = (".onnx", ".xml", ".pt2", ".pt")
UNBATCHED = "completed to max_batch_size: 0; 'assume: rows' batches them"
LEFT_OUT = "left out of the completed configuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A layout, the verdicts that it rests on, and what is known of the graph."""

    layout: Layout
    verdicts: tuple[Verdict, ...]
    findings: Findings

    def fails(self, assumption: str) -> bool:
        """Whether an assumption was found to be wrong."""
        return any(v.assumption == assumption and not v.holds for v in self.verdicts)

    def doubts(self, assumption: str) -> bool:
        """Whether an assumption is not to be relied on unless that was asked for."""
        return any(v.assumption == assumption and v.doubtful for v in self.verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """What a layout is changed by.

    Attributes:
        unpadded: axes that must not be padded.
        masks: what is in padding of these inputs, as stored, and where there is something.
    """

    verdicts: tuple[Verdict, ...]
    unpadded: tuple[str, ...] = ()
    masks: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def late(self) -> bool:
        """Whether there was no time for all of it."""
        return any(verdict.late for verdict in self.verdicts)


JUDGED = Codec((_Judged,))


def served(
    config: ModelConfig, session: Session, store: Store, findings: Findings | None = None
) -> Served:
    """Return how a model is served, by what its configuration says and what its graph does.

    Args:
        config: complete.
        session: with its graph, and nothing else in flight.
        store: keeps what is found.
        findings: of the graph, where they are known.

    Raises:
        ConfigError: configuration and graph contradict each other.
    """
    batched = config.max_batch_size > 0
    known = findings or found(config, session, store, batched=batched)
    layout = _layout(config, session, known)
    wanted = _wanted(config, layout)
    unwanted = _left_out(config, session, store, wanted)
    known = replace(known, verdicts=(*known.verdicts, *unwanted))
    if not wanted:
        return Served(layout=layout, verdicts=known.verdicts, findings=known)
    find = functools.partial(_judged, config, session, known, layout)
    if known.lengths is None:
        judged = find()
    else:
        key = kept_key(config, session, "served", layout, sorted(config.pad), known.lengths)
        judged = remembered(store, key, JUDGED, find)
    for verdict in judged.verdicts:
        if verdict.doubtful:
            log.warning("%s", verdict.line())
    if judged.unpadded:
        layout = _layout(config, session, known, judged.unpadded)
    return Served(
        layout=replace(
            layout,
            alone=any(v.assumption in JOINED and not v.holds for v in judged.verdicts),
            inputs=tuple(_masked(item, judged) for item in layout.inputs),
        ),
        verdicts=(*known.verdicts, *judged.verdicts),
        findings=known,
    )


def with_verdict(
    judged: Served,
    name: str,
    config: ModelConfig,
    store: Store,
    key: Sequence[str],
    test: Callable[[Lengths], Verdict],
) -> Served:
    """Return what was found out, with the verdict of one more test, or the one that is kept.

    Args:
        judged: what was found out before.
        name: of the assumption.
        config: complete.
        store: keeps the verdict.
        key: under which it is kept.
        test: as for `checked`.
    """

    def find() -> Verdict:
        verdict = checked(name, config, judged.findings, test)
        (log.warning if verdict.doubtful else log.info)("%s", verdict.line())
        return verdict

    verdict = remembered(store, key, VERDICT, find)
    return replace(judged, verdicts=(*judged.verdicts, verdict))


def check_declared(config: ModelConfig, judged: Served) -> None:
    """See that what config.pbtxt itself says of padding is true.

    Raises:
        ConfigError: it says that padding is harmless, and it changes answers.
    """
    wrong = next((v for v in judged.verdicts if v.assumption == "padding" and not v.holds), None)
    if wrong is not None and _declared_ragged(config.directory.parent / "config.pbtxt"):
        raise ConfigError(
            f"allow_ragged_batch says that padding is harmless, and it changes answers: "
            f"{wrong.figure} ({wrong.tested}); remove it, so that only requests of equal lengths "
            "are batched, or say what is padded with 'pad.<input>'; the parameter "
            "'assume: padding' serves it all the same"
        )


def keep_left_out(config: ModelConfig, session: Session, store: Store, judged: Served) -> None:
    """Keep why a completed configuration has no batch, or no padding, for those who ask later."""
    for verdict in judged.verdicts:
        if verdict.doubtful and verdict.assumption in (*JOINED, "padding"):
            then = UNBATCHED if verdict.assumption in JOINED else verdict.consequence
            key = kept_key(config, session, LEFT_OUT, verdict.assumption)
            keep(store, key, VERDICT, replace(verdict, consequence=then))


def _left_out(
    config: ModelConfig, session: Session, store: Store, wanted: Collection[str]
) -> list[Verdict]:
    """Return why serving rests on less than it might, where that was found out."""
    unasked = {"padding", *(() if config.max_batch_size else JOINED)} - {*wanted} - config.assume
    keys = [kept_key(config, session, LEFT_OUT, name) for name in sorted(unasked)]
    return [found for key in keys if (found := kept(store, key, VERDICT)) is not None]


def _declared_ragged(file: Path) -> bool:
    try:
        return sets_ragged(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return False


def _layout(
    config: ModelConfig, session: Session, known: Findings, unpadded: Collection[str] = ()
) -> Layout:
    layout = build_layout(
        config,
        known.signature,
        session.shape_policy,
        unpadded=unpadded,
        proven=known.lengths is not None,
    )
    lengths = known.lengths
    if lengths is None or not (lengths.sums or lengths.scale or lengths.fixed):
        return layout
    sizes = lengths.sizes(1)
    return replace(
        layout, typical_sizes={name: sizes[name] for name in layout.equal_axes if name in sizes}
    )


def _masked(item: InputLayout, judged: _Judged) -> InputLayout:
    if item.name not in judged.masks:
        return item
    fill, real = judged.masks[item.name]
    return replace(item, fill=fill, real=real)


def _wanted(config: ModelConfig, layout: Layout) -> list[str]:
    """Return what serving rests on, besides the axes and the outputs."""
    if layout.concatenated:
        return []
    joined = config.max_batch_size > 1
    asked = {"rows": joined, "states": joined and layout.states, "padding": layout.axes}
    return [name for name, so in asked.items() if so]


def _judged(config: ModelConfig, session: Session, known: Findings, layout: Layout) -> _Judged:
    trial = trial_of(config, session, known.signature, known.bounds)
    tolerance = _tolerance(config, session, layout)
    samples = () if known.lengths is None else samples_of(config, trial, known.lengths)
    meant = layout
    unpadded: tuple[str, ...] = ()

    def padding(lengths: Lengths) -> Verdict:
        nonlocal meant, unpadded
        verdict, meant, unpadded = padding_verdict(
            trial, lengths, layout, config.pad, tolerance, samples
        )
        return verdict

    def rows(lengths: Lengths) -> Verdict:
        names = {output.name for output in layout.outputs}
        outputs = [spec for spec in known.signature.outputs if spec.name in names]
        return rows_verdict(trial, lengths, outputs, tolerance, samples)

    def states(lengths: Lengths) -> Verdict:
        outputs = known.signature.outputs
        return states_verdict(trial, lengths, outputs, tolerance, layout.states, samples)

    tests: Mapping[str, Callable[[Lengths], Verdict]]
    tests = {"rows": rows, "states": states, "padding": padding}

    def test(name: str, lengths: Lengths) -> Verdict:
        if config.max_batch_size and not lengths.batch:
            raise Untestable("inputs do not begin with rows")
        return tests[name](lengths)

    verdicts = [
        checked(name, config, known, functools.partial(test, name))
        for name in _wanted(config, layout)
    ]
    changed = [new for old, new in zip(layout.inputs, meant.inputs, strict=True) if old != new]
    return _Judged(
        verdicts=tuple(verdicts),
        unpadded=unpadded,
        masks={item.name: (item.fill, item.real) for item in changed},
    )


def _tolerance(config: ModelConfig, session: Session, layout: Layout) -> float:
    path = Path(session.source.path)
    if path.suffix in (".onnx", ".xml") and quantises(path):
        return ROUGH
    half = any(output.dtype.name in ("FP16", "BF16") for output in layout.outputs)
    exact = config.precision == "fp32" or (config.precision == "origin" and path.suffix in FILES)
    return EXACT if exact and not half else HALF
