"""A model's graph, opened in this process, with the buckets that serving would give it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ge_backend.buckets.build import build_grid
from ge_backend.buckets.grid import Bucket, BucketGrid
from ge_backend.config.model import MachineConfig, ModelConfig
from ge_backend.config.model_folder import ModelFolder, read_folder
from ge_backend.config.placement import Placement
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.inline import connect_inline
from ge_backend.layout.auto_complete import completed
from ge_backend.layout.layout import Layout, build_layout
from ge_backend.serving.connect import source_of
from ge_backend.serving.engine import remembered_engine
from ge_backend.warmup.measure import cost_key
from ge_backend.warmup.store import Store
from ge_backend.warmup.warmup import Effort, warm_up

__all__ = ["OpenModel", "open_model"]

ARENA_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """A model as an instance of it would be after load, but for warm-up.

    Attributes:
        config: as the host would give it: completed from the graph.
        store: where costs and traffic are kept.
    """

    folder: ModelFolder
    config: ModelConfig
    session: Session
    layout: Layout
    grid: BucketGrid
    store: Store

    def kept_costs(self) -> dict[Bucket, float]:
        """Return what warm-up of this graph on this machine measured before, by bucket."""
        return self.store.costs(cost_key(self.config, self.layout, self.session))

    def measure(self) -> dict[Bucket, float]:
        """Measure every bucket now and keep the costs, as warm-up does; nanoseconds by bucket."""
        effort = Effort(repeats=self.config.warmup_repeats)
        costs = warm_up(self.session, self.layout, self.grid.entries, effort)
        key = cost_key(self.config, self.layout, self.session)
        self.store.keep_costs(key, {**self.store.costs(key), **costs})
        return costs


@contextmanager
def open_model(
    path: Path, *, device: str | None = None, cache_dir: Path | None = None
) -> Iterator[OpenModel]:
    """Load the model of a folder; it is freed at the end.

    Args:
        path: the model's folder.
        device: None is the one that its configuration, or GE_DEVICE, names.
        cache_dir: None is the one that GE_CACHE_DIR names, or the default.

    Raises:
        GeError: the model would not load in a server either.
    """
    folder = read_folder(path)
    environment: Mapping[str, str] = os.environ
    given = folder.config(environment)
    chosen = device or given.device
    machine = MachineConfig.read(environment, owner_pid=os.getpid())
    store = Store(cache_dir or machine.cache_dir)
    session = Session(
        functools.partial(connect_inline, chosen, lanes=given.lanes),
        source_of(remembered_engine(given, store), chosen),
        arena_bytes=ARENA_BYTES,
        on_restart=lambda: None,
    )
    try:
        document = completed(folder.document, given, session.signature, session.fixed_shapes)
        config = replace(
            folder.config(environment, document), placement=Placement(devices=(chosen,))
        )
        static = session.static_shapes
        fixed = session.fixed_shapes
        layout = build_layout(config, session.signature, static_shapes=static, fixed_shapes=fixed)
        traffic = store.traffic(config.name)
        grid = build_grid(
            config,
            layout,
            static_shapes=static,
            bucketed=session.bucketed,
            traffic=traffic,
            fixed_shapes=fixed,
        )
        yield OpenModel(
            folder=folder,
            config=config,
            session=session,
            layout=layout,
            grid=grid,
            store=store,
        )
    finally:
        session.close()
