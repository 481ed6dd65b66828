"""Opening a model: its graph on its devices, its buckets and their costs, and who learns them."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from ge_backend.batching.pipeline import Pipeline
from ge_backend.batching.plan import Policy
from ge_backend.buckets.grid import BucketGrid
from ge_backend.config.model import ModelConfig
from ge_backend.executor.client.session import Session
from ge_backend.fleet.fleet import Fleet
from ge_backend.layout.layout import Layout
from ge_backend.layout.sequence_tensors import hidden_outputs
from ge_backend.learning.learner import Learner
from ge_backend.metrics import Recorder
from ge_backend.serving.connect import open_fleet
from ge_backend.serving.engine_choice import with_engine
from ge_backend.serving.limits import learned_limits
from ge_backend.serving.shaped import ShapedModel
from ge_backend.serving.whole_run_ranges import warn_of_whole_run_ranges
from ge_backend.tensors import Signature
from ge_backend.traffic.traffic import Traffic
from ge_backend.warmup.measure import (
    cost_key,
    cost_model,
    estimated_costs,
    known_shapes,
    measured_costs,
)
from ge_backend.warmup.store import Store

__all__ = ["keep_states", "open_model"]

log = logging.getLogger(__name__)


def open_model(
    config: ModelConfig,
    recorder: Recorder,
    store: Store,
    *,
    on_restart: Callable[[str], None],
    served_as: str = "",
) -> tuple[Pipeline, Learner]:
    """Load a model on its devices and warm it up, or have that done beside serving.

    Returns:
        What runs it, and who learns its buckets: the learner is closed first.

    Args:
        config: the model's, complete.
        recorder: counts what it does.
        store: keeps its costs and traffic.
        on_restart: called with a device's name whenever its executor was found dead.
        served_as: its name in metrics and timelines, where that is not the model's own.

    Raises:
        GeError: the model cannot be served as configured.
    """
    config = with_engine(config, store)
    connect = functools.partial(open_fleet, config, on_restart=on_restart, served_as=served_as)
    fleet = connect()
    session = fleet.sessions[0]
    warn_of_whole_run_ranges(config)
    model = ShapedModel.of(config, session, store)
    layout, grid = model.layout, model.grid
    for line in grid.describe():
        log.info("buckets %s", line)
    if _only_equal(config, layout):
        log.info(
            "requests of different lengths are not batched: no input has allow_ragged_batch, which "
            "says that padding is harmless; those that config.pbtxt leaves out get it where a mask "
            "has their axes, by the same names (axes.<tensor>)"
        )
    started = time.monotonic()
    later = _measured_later(config, layout, session)
    if later:
        costs = estimated_costs(config, layout, session, grid, store)
    else:
        costs = measured_costs(config, layout, fleet.sessions, grid, store)
    layout = _limited(config, layout, session, grid, store)
    keep_states(config, layout, session)
    recorder.set("ge_warmup_seconds", time.monotonic() - started)
    recorder.set("ge_buckets", len(costs))
    recorder.add("ge_unplanned_shapes_total", 0.0)  # see `begin_at_zero`
    shapes = known_shapes(layout)
    pipeline = Pipeline(
        layout=layout,
        fleet=fleet,
        costs=cost_model(config, layout, costs, session, shapes),
        policy=_policy(config, layout, fleet),
        recorder=recorder,
        traffic=Traffic(layout.axes),
    )
    key = cost_key(config, layout, session) if config.warmup else []
    unmeasured = grid if later else None
    learner = Learner(
        config, pipeline, costs, store, connect, key, shapes=shapes, unmeasured=unmeasured
    )
    return pipeline, learner


def _only_equal(config: ModelConfig, layout: Layout) -> bool:
    """Whether lengths differ and nothing in config.pbtxt says that rows may be padded."""
    free = config.max_batch_size > 1 and layout.matched and not layout.axes
    silent = not (config.sequence or any(tensor.ragged for tensor in config.inputs))
    return bool(free and silent)


def _measured_later(config: ModelConfig, layout: Layout, session: Session) -> bool:
    """Whether buckets are measured beside serving.

    Not where a bucket has to be compiled first, where states stay with the sessions that keep them,
    or where the pool has to know what scratch a run takes.
    """
    free = not (session.static_shapes or layout.concatenated or layout.states)
    return config.warmup_background and free and not session.inspect().pool.size_bytes


def _limited(
    config: ModelConfig, layout: Layout, session: Session, grid: BucketGrid, store: Store
) -> Layout:
    """Return the layout with limits that the graph does not state; buckets have theirs anyway."""
    if session.static_shapes or session.bucketed or not config.warmup:
        return layout
    # The last of it tells these from what was looked for above the largest bucket alone.
    key = [*cost_key(config, layout, session), *map(str, grid.axes), "from the largest bucket on"]
    limits = learned_limits(session, layout, grid, store, key)
    return replace(layout, limits={**limits, **layout.limits})


def _policy(config: ModelConfig, layout: Layout, fleet: Fleet) -> Policy:
    """Return what the planner goes by; instances of a model share the lanes of its devices."""
    lanes = sum(session.lanes for session in fleet.sessions)
    return Policy(
        axes=layout.axes,
        lanes=max(1, lanes // config.instances),
        packed=fleet.sessions[0].packed,
        max_elements=config.max_elements,
        refuse_overflow=config.overflow == "error" or fleet.sessions[0].static_shapes,
    )


def keep_states(config: ModelConfig, layout: Layout, session: Session) -> None:
    """Have the session keep the states of the model's sequences, where it has any.

    Called once the model is compiled for its buckets.
    """
    batching = config.sequence
    if batching is not None and batching.states:
        session.keep_states(
            batching.states,
            batching.slots,
            batched=config.max_batch_size > 0,
            hidden=_hidden(config, layout, session.signature),
        )


def _hidden(config: ModelConfig, layout: Layout, signature: Signature) -> tuple[str, ...]:
    """Return the outputs that no client gets, which need not leave the device."""
    wanted = {name for output in layout.outputs for name in (output.name, *output.lengths)}
    unwanted = [spec.name for spec in signature.outputs if spec.name not in wanted]
    return tuple(dict.fromkeys([*hidden_outputs(config), *unwanted]))
