"""Which of several engines serves a model whose parameter `engine` is `auto`.

The fastest here of those that answer as the first one does, which the file is made for.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from ge_backend.errors import (
    DeviceUnavailable,
    ExecutorLost,
    GeError,
    ModelError,
    OutOfMemory,
    Unsupported,
)
from ge_backend.executor.client.session import Session
from ge_backend.model.config.engine_table import EngineRow, engines_for
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.files.model_file import find_model_file, model_files
from ge_backend.model.layout.layout import Layout
from ge_backend.serving.assumptions.comparison import difference, run_once, sample_of
from ge_backend.serving.assumptions.engine import with_engine_verdict, wrong_answers
from ge_backend.serving.assumptions.served import served
from ge_backend.serving.connect import AUTO, open_session, reference_of
from ge_backend.serving.warmup.measure import fingerprint, processor
from ge_backend.serving.warmup.shaped import ShapedModel
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.warmup import Effort, warm_up
from ge_backend.shapes.buckets.grid import Bucket, BucketGrid, label
from ge_backend.tensors import Array

__all__ = ["described_choice", "remembered_engine", "with_engine"]

log = logging.getLogger(__name__)

# Of the buckets, from the smallest to the middle one, so many are measured on each engine.
SAMPLES = 4
# By how much answers may differ, as a part of an output's largest number: FP32 is rounded
# otherwise in every engine, and what is computed in 16 bits more so.
CLOSE, ROUGH = 1e-2, 0.1
# What an engine may be left out for; what is wrong with the configuration is so for all.
LEFT_OUT = (DeviceUnavailable, ExecutorLost, ModelError, OutOfMemory, Unsupported)
# Choices that were kept under another rule are made anew.
RULE = "answers are compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What is found out about one engine.

    Attributes:
        buckets: that were asked for; `costs` has those that it runs.
        inputs: the sample, the same for every engine; empty where there is none.
        answers: to it, by output.
        differs: how these are others than the first engine's; "" where they are not.
    """

    layout: Layout
    buckets: Sequence[Bucket]
    costs: Mapping[Bucket, float]
    inputs: Mapping[str, Array] = field(default_factory=dict)
    answers: Mapping[str, Array] = field(default_factory=dict)
    differs: str = ""


def with_engine(config: ModelConfig, store: Store) -> ModelConfig:
    """Return the configuration with an engine in place of `auto`.

    Every engine that is installed and can run the file in the configured precision is measured on
    some of the model's buckets, unless it answers otherwise than the first; what is found is kept
    for the next start, but where one lacked memory, of which there may be more then.

    Raises:
        GeError: as opening a model.
    """
    known = remembered_engine(config, store)
    if known.engine != AUTO:
        return known
    engines = _candidates(config)
    first: tuple[str, _Measured] | None = None
    times: dict[str, Mapping[Bucket, float]] = {}
    lacking = False
    for engine in engines:
        asked = replace(config, engine=engine.name)
        try:
            found = _measured(asked, store, None if first is None else first[1])
        except LEFT_OUT as error:
            log.info("engine %s is left out: %s", engine.name, error)
            lacking |= isinstance(error, OutOfMemory)
            continue
        if first is None:
            first = engine.name, found
        if found.differs:
            log.warning(
                "engine %s is left out, since it answers otherwise than %s: %s; name it with the "
                "parameter 'engine' to serve with it all the same",
                engine.name,
                first[0],
                found.differs,
            )
        else:
            times[engine.name] = found.costs
    samples = () if first is None else first[1].buckets
    common = [b for b in samples if all(b in costs for costs in times.values())]
    if not (times and common):
        return replace(config, engine="")
    ordered = sorted(times, key=lambda name: sum(math.log(times[name][b]) for b in common))
    kept = {name: {bucket: times[name][bucket] for bucket in common} for name in ordered}
    for line in _described(kept):
        log.info("engine %s", line)
    if not lacking:
        store.keep_engines(_key(config, engines), kept)
    return replace(config, engine=ordered[0])


def remembered_engine(config: ModelConfig, store: Store) -> ModelConfig:
    """Return the configuration with the engine that an earlier start chose, if there is one."""
    if config.engine != AUTO:
        return config
    engines = _candidates(config)
    if len(engines) <= 1:
        return replace(config, engine=engines[0].name if engines else "")
    known = next(iter(store.engines(_key(config, engines))), "")
    return replace(config, engine=known) if known in {row.name for row in engines} else config


def described_choice(config: ModelConfig, store: Store) -> str:
    """Return the engine of a model that asks for the fastest, and its figures; "" for others."""
    if config.engine != AUTO:
        return ""
    engines = _candidates(config)
    if len(engines) <= 1:
        return f"engine {engines[0].name}, the only one for it" if engines else ""
    found = store.engines(_key(config, engines))
    return f"engine {'; '.join(_described(found))}" if found else "engine not chosen yet"


def _described(found: Mapping[str, Mapping[Bucket, float]]) -> list[str]:
    """Return a text for each engine that was measured, the fastest first."""
    fastest = next(iter(found))
    return [
        f"{name}{' is chosen' if name == fastest else ''}: "
        + ", ".join(f"{label(bucket)} {cost / 1e6:.1f} ms" for bucket, cost in costs.items())
        for name, costs in found.items()
    ]


def _candidates(config: ModelConfig) -> list[EngineRow]:
    path = find_model_file(config.directory, config.filename, config.device)
    rows = engines_for(path.name, config.placement.kind)
    found = [row for row in rows if config.precision in row.precisions]
    # Concatenated inputs have no buckets to measure on.
    return found[:1] if config.concatenate else found


def _key(config: ModelConfig, engines: Sequence[EngineRow]) -> list[str]:
    path = find_model_file(config.directory, config.filename, config.device)
    names = [row.name for row in engines]
    # What is installed here, which may be less than when a choice was kept, or more, or newer.
    libraries = sorted({library for row in engines for library in row.libraries})
    names += [
        f"{spec.name} {fingerprint(Path(spec.origin))}"
        for spec in map(find_spec, libraries)
        if spec is not None and spec.origin is not None
    ]
    given: Mapping[str, object] = {"precision": config.precision, "threads": config.threads}
    return [*map(fingerprint, model_files(path)), str(given), processor(), RULE, *names]


def _measured(config: ModelConfig, store: Store, first: _Measured | None) -> _Measured:
    """Return what is found out about an engine; it is compared with the first one's."""
    session = open_session(config, config.device, on_restart=lambda: None)
    try:
        judged = served(config, session, store)
        model = ShapedModel.of(config, session, store, judged.layout)
        layout = model.layout
        if first is not None:
            _check_axes(layout, first.layout)
            layout = replace(layout, matched_size=first.layout.matched_size)
        buckets = first.buckets if first is not None else _samples(model.grid)
        effort = Effort(repeats=config.warmup_repeats)
        costs = warm_up(session, layout, buckets, effort)
        found = _Measured(layout=layout, buckets=buckets, costs=costs)
        if first is None:
            return _with_sample(config, session, found)
        differs = _differs(config, session, first)
        if not differs:
            judged = with_engine_verdict(config, session, store, judged, reference_of(config))
            differs = wrong_answers(judged)
        return replace(found, differs=differs)
    finally:
        session.close()


def _check_axes(layout: Layout, first: Layout) -> None:
    """See that an engine pads what the first one does: some infer names of axes, others do not."""
    if layout.axes != first.axes:
        own, others = (", ".join(each.axes) or "no axis" for each in (layout, first))
        raise Unsupported(
            f"it would pad {own}, where the first engine pads {others}; name them with the "
            "parameters 'axes.<tensor>'"
        )


def _samples(grid: BucketGrid) -> Sequence[Bucket]:
    ordered = sorted(grid.entries, key=math.prod)
    chosen = [ordered[len(ordered) * part // (2 * SAMPLES)] for part in range(SAMPLES)]
    return list(dict.fromkeys(chosen))


def _with_sample(config: ModelConfig, session: Session, found: _Measured) -> _Measured:
    """Return it with a sample and its answers, where the engine takes one."""
    log.info("%s is tried with made-up inputs; it may well refuse some", config.engine)
    try:
        inputs, answers = sample_of(session, found.layout, found.buckets[-1])
    except GeError as error:
        log.warning(
            "engines are not compared by their answers: %s refuses made-up inputs: %s",
            config.engine,
            error,
        )
        return found
    return replace(found, inputs=inputs, answers=answers)


def _differs(config: ModelConfig, session: Session, first: _Measured) -> str:
    """Return how an engine's answers to the sample are others than the first one's."""
    if not first.inputs:
        return ""
    try:
        answers = run_once(session, first.inputs)
    except GeError as error:
        return f"it refuses what that takes: {error}"
    path = find_model_file(config.directory, config.filename, config.device)
    exact = config.precision == "fp32" or (config.precision == "origin" and path.suffix == ".onnx")
    return difference(first.answers, answers, first.layout, CLOSE if exact else ROUGH)
