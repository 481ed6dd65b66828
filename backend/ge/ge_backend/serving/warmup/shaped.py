"""A model's graph on a device, and the buckets that it is served in: how every opening begins."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ge_backend.errors import ConfigError
from ge_backend.executor.client.session import Session
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.layout import Layout, build_layout
from ge_backend.serving.warmup.equal_axis_size import with_equal_axis_size
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.verdict import Verdict
from ge_backend.shapes.buckets.build import build_grid
from ge_backend.shapes.buckets.grid import BucketGrid
from ge_backend.shapes.traffic.histogram import SizeHistogram

__all__ = ["ShapedModel", "recorded_traffic"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedModel:
    """A model as an instance of it is after load, but for warm-up.

    Attributes:
        config: complete, as the host gives it, but for rows of which a run takes no more.
        session: with the model's first device.
        store: where costs and traffic are kept.
        verdicts: what was tested of it.
    """

    config: ModelConfig
    session: Session
    layout: Layout
    grid: BucketGrid
    store: Store
    verdicts: tuple[Verdict, ...] = ()

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        session: Session,
        store: Store,
        layout: Layout | None = None,
        verdicts: tuple[Verdict, ...] = (),
    ) -> ShapedModel:
        """Return what is served of a graph that is loaded; without a layout as its file says.

        Raises:
            ConfigError: configuration and graph do not agree, or make no usable buckets.
        """
        shape_policy = session.shape_policy
        if layout is None:
            layout = build_layout(config, session.signature, shape_policy)
        if 0 < layout.most_rows < config.max_batch_size:
            log.info("runs have up to %d rows: the model file takes no more", layout.most_rows)
            config = replace(config, max_batch_size=layout.most_rows)
        grid = _grid(config, layout, session, store)
        if config.warmup and not shape_policy.prepared and not layout.concatenated:
            layout = with_equal_axis_size(session, layout, min(grid.entries, key=math.prod))
        return cls(
            config=config,
            session=session,
            layout=layout,
            grid=grid,
            store=store,
            verdicts=verdicts,
        )

    def grid_with(self, buckets: Mapping[str, str]) -> BucketGrid:
        """Return the buckets that it has with these sizes of axes, by name, in place of its own.

        Raises:
            ConfigError: it would not load with them.
        """
        config = replace(self.config, buckets={**self.config.buckets, **buckets})
        return _grid(config, self.layout, self.session, self.store)


def _grid(config: ModelConfig, layout: Layout, session: Session, store: Store) -> BucketGrid:
    traffic = recorded_traffic(config, store)
    return build_grid(config, layout, session.shape_policy, traffic=traffic)


def recorded_traffic(config: ModelConfig, store: Store) -> dict[str, SizeHistogram]:
    """Return the recorded traffic where it decides something; a broken file is as good as none."""
    try:
        return store.traffic(config.name) if config.max_graphs else {}
    except ConfigError as error:
        log.warning("buckets are chosen without traffic: %s", error)
        return {}
