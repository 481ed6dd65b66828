"""A model in this process, without a server: for commands that look into it."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ge_backend.errors import ConfigError
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.inline import connect_inline
from ge_backend.kinds import FUSED, TEXT, kind_of
from ge_backend.model.config.model import MachineConfig, ModelConfig
from ge_backend.model.config.model_folder import read_document, read_folder, step_names
from ge_backend.model.config.placement import Placement
from ge_backend.serving.assumptions.completion import whole_document
from ge_backend.serving.assumptions.engine import with_engine_verdict
from ge_backend.serving.assumptions.precision import in_precision
from ge_backend.serving.connect import ARENA_BYTES, source_of
from ge_backend.serving.warmup.shaped import ShapedModel
from ge_backend.serving.warmup.store import Store

__all__ = ["open_offline"]


@contextlib.contextmanager
def open_offline(
    path: Path, *, device: str | None = None, cache_dir: Path | None = None
) -> Iterator[ShapedModel]:
    """Load the model of a folder in this process; it is freed at the end.

    Args:
        path: the model's folder.
        device: None is the one that its configuration, or GE_DEVICE, names.
        cache_dir: None is the one that GE_CACHE_DIR names, or the default.

    Raises:
        ConfigError: it writes text, or is an ensemble, fused or not.
        GeError: the model would not load in a server either.
    """
    folder = read_folder(path)
    given = folder.config(os.environ)
    if kind_of(given) is TEXT:
        raise ConfigError(
            f"{folder.path} writes text, which has no buckets before it is served; expected an "
            "encoder or another graph"
        )
    if kind_of(given) is FUSED:
        steps = step_names(read_document(folder.path.parent / given.fuse))
        raise ConfigError(
            f"{folder.path} runs the ensemble {given.fuse!r} and has no graph of its own; expected "
            f"the folder of one of its steps: {', '.join(steps)}"
        )
    chosen = device or given.device
    machine = MachineConfig.here()
    store = Store(cache_dir or machine.cache_dir)

    def opened(config: ModelConfig) -> Session:
        return Session(
            functools.partial(connect_inline, chosen, lanes=given.lanes),
            source_of(config, chosen),
            arena_bytes=ARENA_BYTES,
            on_restart=lambda: None,
        )

    def reference(engine: str, precision: str) -> Session:
        return opened(replace(given, engine=engine, precision=precision))

    with contextlib.ExitStack() as held:
        session = held.enter_context(contextlib.closing(opened(given)))
        document = whole_document(folder.document, given, session, store)
        config = folder.config(os.environ, document)
        config = replace(config, placement=Placement(devices=(chosen,)))
        config, session, judged = in_precision(
            config,
            session,
            store,
            reference,
            lambda lower: held.enter_context(contextlib.closing(opened(lower))),
        )
        judged = with_engine_verdict(config, session, store, judged, reference)
        yield ShapedModel.of(config, session, store, judged.layout, judged.verdicts)
