"""Opening a model: its graph on its devices, its buckets and their costs, and who learns them."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from ge_backend.executor.client.served_files import ServedFiles
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.inline import InlineExecutors
from ge_backend.metrics import Recorder
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.files.model_file import stamp_of
from ge_backend.model.layout.sequence_tensors import hidden_outputs
from ge_backend.serving.assumptions.engine import check_engine, with_engine_verdict
from ge_backend.serving.assumptions.precision import in_precision
from ge_backend.serving.assumptions.served import check_declared
from ge_backend.serving.batching.pipeline import Pipeline
from ge_backend.serving.batching.plan import Policy
from ge_backend.serving.connect import AUTO, kept_files, open_fleet, reference_of
from ge_backend.serving.dynamic_quantization import warn_of_dynamic_quantization
from ge_backend.serving.fleet.fleet import Fleet
from ge_backend.serving.learning.learner import Learner
from ge_backend.serving.warmup.measure import (
    cost_model,
    estimated_costs,
    measured_costs,
    shape_cache,
)
from ge_backend.serving.warmup.shaped import ShapedModel
from ge_backend.serving.warmup.store import Store
from ge_backend.shapes.traffic.traffic import Traffic

__all__ = ["keep_states", "open_model"]

log = logging.getLogger(__name__)

FIRST_SERVES = (
    "the parameter 'engine' is 'auto', which is now as 'first': the first engine that can serves; "
    "`ge-backend tune MODEL --measure` finds the fastest, and sets it with --apply"
)


def open_model(
    config: ModelConfig,
    recorder: Recorder,
    store: Store,
    *,
    on_restart: Callable[[str], None],
    on_states_lost: Callable[[], None] = lambda: None,
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
        on_states_lost: called whenever the states of its sequences were lost with an executor.
        served_as: its name in metrics and timelines, where that is not the model's own.

    Raises:
        GeError: the model cannot be served as configured.
    """
    if config.engine == AUTO:
        log.info(FIRST_SERVES)
    connect = functools.partial(
        open_fleet, on_restart=on_restart, served_as=served_as, inline=InlineExecutors()
    )
    with contextlib.ExitStack() as opened:
        fleet = opened.enter_context(contextlib.closing(connect(config)))

        def reopened(lower: ModelConfig) -> Session:
            nonlocal fleet
            opened.close()
            fleet = opened.enter_context(contextlib.closing(connect(lower)))
            return fleet.sessions[0]

        config, session, judged = in_precision(
            config, fleet.sessions[0], store, reference_of(config), reopened
        )
        warn_of_dynamic_quantization(config)
        check_declared(config, judged)
        judged = with_engine_verdict(config, session, store, judged, reference_of(config))
        check_engine(config, session, judged)
        model = ShapedModel.of(config, session, store, judged.layout, judged.verdicts)
        for line in model.grid.describe():
            log.info("buckets: %s", line)
        if _only_equal(model):
            log.info(
                "requests of different lengths are not batched: no input has allow_ragged_batch, "
                "which says that padding is harmless; those that config.pbtxt leaves out get it "
                "where a mask has their axes, by the same names (axes.<tensor>)"
            )
        started = time.monotonic()
        later = _measured_later(model)
        costs = estimated_costs(model) if later else measured_costs(model, fleet.sessions[1:])
        keep_states(model, on_states_lost)
        recorder.set("ge_warmup_seconds", time.monotonic() - started)
        recorder.set("ge_buckets", len(costs))
        for each in model.verdicts:
            labels = {"assumption": each.assumption, "verdict": each.verdict}
            recorder.set("ge_assumption_info", 1.0, **labels)
        recorder.add("ge_unplanned_shapes_total", 0.0)  # see `begin_at_zero`
        shapes = shape_cache(model.layout)
        pipeline = Pipeline(
            layout=model.layout,
            fleet=fleet,
            costs=cost_model(model, costs, shapes),
            policy=_policy(model, fleet),
            recorder=recorder,
            traffic=Traffic(model.layout.axes),
            response_parameters=config.response_parameters,
        )
        connect_again = functools.partial(connect, config)
        learner = Learner(model, pipeline, costs, connect_again, shapes=shapes, estimated=later)
        opened.pop_all()
    return pipeline, learner


def _only_equal(model: ShapedModel) -> bool:
    """Whether lengths differ and nothing in config.pbtxt says that rows may be padded."""
    config, layout = model.config, model.layout
    free = config.max_batch_size > 1 and layout.equal_axes and not layout.axes
    silent = not (config.sequence or any(tensor.ragged for tensor in config.inputs))
    return bool(free and silent)


def _measured_later(model: ShapedModel) -> bool:
    """Whether buckets are measured beside serving.

    Not where a bucket has to be compiled first, where states stay with the sessions that keep them,
    or where the pool has to know what scratch a run takes.
    """
    layout, session = model.layout, model.session
    free = not (session.shape_policy.prepared or layout.concatenated or layout.states)
    return model.config.warmup_background and free and not session.inspect().pool.size_bytes


def _policy(model: ShapedModel, fleet: Fleet) -> Policy:
    """Return what the planner goes by; instances of a model share the lanes of its devices."""
    config, session = model.config, model.session
    lanes = sum(one.lanes for one in fleet.sessions)
    return Policy(
        axes=model.layout.axes,
        lanes=max(1, lanes // config.instances),
        in_turn=session.runs_here,
        packed=session.shape_policy.packed,
        max_elements=config.max_elements,
        refuse_overflow=config.overflow == "error" or session.shape_policy.prepared,
        tried=config.warmup or session.shape_policy.prepared,
    )


def keep_states(model: ShapedModel, on_lost: Callable[[], None]) -> None:
    """Have the session keep the states of the model's sequences, where it has any.

    Of the files that these begin with a copy is kept, for executors that come after this one.
    Called once the model is compiled for its buckets; `on_lost` as for `Session.keep_states`.
    """
    batching = model.config.sequence
    if batching is not None and batching.states:
        model.session.keep_states(
            model.layout.states,
            batching.slots,
            batched=model.config.max_batch_size > 0,
            hidden=_hidden(model),
            on_lost=on_lost,
        )
        files = [Path(state.initial_file) for state in batching.states if state.initial_file]
        if files:
            place = Path(os.path.commonpath([file.parent for file in files]))
            initial = ServedFiles(place, lambda: files, stamp_of(files))
            initial.copy = kept_files(model.config, initial)
            model.session.initial = initial


def _hidden(model: ShapedModel) -> tuple[str, ...]:
    """Return the outputs that no client gets, which need not leave the device."""
    wanted = {name for output in model.layout.outputs for name in (output.name, *output.lengths)}
    given = (spec.name for spec in model.session.signature.outputs)
    unwanted = [name for name in given if name not in wanted]
    return tuple(dict.fromkeys([*hidden_outputs(model.config), *unwanted]))
