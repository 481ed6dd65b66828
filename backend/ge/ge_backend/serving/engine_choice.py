"""Which of several engines serves a model whose parameter `engine` is `auto`: the fastest here."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

from ge_backend.buckets.grid import Bucket, label
from ge_backend.config.engine_table import EngineRow, engines_for
from ge_backend.config.model import ModelConfig
from ge_backend.device.files.model_file import find_model_file, model_files
from ge_backend.errors import DeviceUnavailable, ModelError, Unsupported
from ge_backend.serving.connect import AUTO, open_session
from ge_backend.serving.shaped import ShapedModel
from ge_backend.warmup.measure import fingerprint, processor
from ge_backend.warmup.store import Store
from ge_backend.warmup.warmup import Effort, warm_up

__all__ = ["described_choice", "remembered_engine", "with_engine"]

log = logging.getLogger(__name__)

# Of the buckets, from the smallest to the middle one, so many are measured on each engine.
SAMPLES = 4


def with_engine(config: ModelConfig, store: Store) -> ModelConfig:
    """Return the configuration with an engine in place of `auto`.

    Every engine that is installed and can run the file in the configured precision is measured on
    some of the model's buckets; what is found is kept for the next start.

    Raises:
        GeError: as opening a model.
    """
    known = remembered_engine(config, store)
    if known.engine != AUTO:
        return known
    engines = _candidates(config)
    times: dict[str, dict[Bucket, float]] = {}
    samples: Sequence[Bucket] = ()
    for engine in engines:
        try:
            samples, times[engine.name] = _measured(
                replace(config, engine=engine.name), store, samples
            )
        except (DeviceUnavailable, ModelError, Unsupported) as error:
            log.info("engine %s is left out: %s", engine.name, error)
    common = [b for b in samples if all(b in costs for costs in times.values())]
    if not (times and common):
        return replace(config, engine="")
    ordered = sorted(times, key=lambda name: sum(math.log(times[name][b]) for b in common))
    found = {name: {bucket: times[name][bucket] for bucket in common} for name in ordered}
    for line in _described(found):
        log.info("engine %s", line)
    store.keep_engines(_key(config, engines), found)
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
    return [row for row in rows if config.precision in row.precisions]


def _key(config: ModelConfig, engines: Sequence[EngineRow]) -> list[str]:
    path = find_model_file(config.directory, config.filename, config.device)
    names = [row.name for row in engines]
    # What is installed here, which may be less than when a choice was kept, or more.
    libraries = sorted({library for row in engines for library in row.libraries})
    names += filter(find_spec, libraries)
    given: Mapping[str, object] = {"precision": config.precision, "threads": config.threads}
    return [*map(fingerprint, model_files(path)), str(given), processor(), *names]


def _measured(
    config: ModelConfig, store: Store, samples: Sequence[Bucket]
) -> tuple[Sequence[Bucket], dict[Bucket, float]]:
    """Return the buckets that were measured, those given if there are any, and their costs."""
    session = open_session(config, config.device, on_restart=lambda: None)
    try:
        model = ShapedModel.of(config, session, store)
        if not samples:
            ordered = sorted(model.grid.entries, key=math.prod)
            samples = [ordered[len(ordered) * part // (2 * SAMPLES)] for part in range(SAMPLES)]
            samples = list(dict.fromkeys(samples))
        return samples, warm_up(
            session, model.layout, samples, Effort(repeats=config.warmup_repeats)
        )
    finally:
        session.close()
