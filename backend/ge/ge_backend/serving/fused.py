"""A model that runs a whole ensemble of its repository inside itself: the parameter `fuse`."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ge_backend.errors import ConfigError, GeError, OutOfMemory
from ge_backend.metrics import Recorder
from ge_backend.model.config.described import with_description
from ge_backend.model.config.engine_table import PREPROCESS_ENDS
from ge_backend.model.config.model import MachineConfig, ModelConfig
from ge_backend.model.config.model_folder import ModelFolder
from ge_backend.model.files.model_file import find_model_file
from ge_backend.model.layout.layout import outside_layout
from ge_backend.serving.batching.pipeline import Pipeline
from ge_backend.serving.connect import complete_document, runs_inline, tokenizer_of
from ge_backend.serving.ensemble.dag import Dag
from ge_backend.serving.ensemble.members import Ensemble, check_members, read_ensemble
from ge_backend.serving.ensemble.retention import Place, StepRetention, step_retentions
from ge_backend.serving.ensemble.runner import EnsembleRunner, EnsembleStep
from ge_backend.serving.host_server import HostServer
from ge_backend.serving.learning.learner import Learner
from ge_backend.serving.opening import open_model
from ge_backend.serving.warmup.store import Store

__all__ = ["fused_document", "open_fused", "tokenizing_step"]

log = logging.getLogger(__name__)

# What an ensemble declares and its fused model takes over when it says nothing itself.
TAKEN_OVER = ("input", "output", "max_batch_size")


def fused_document(document: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
    """Return the host's configuration with what the ensemble declares and it does not say itself.

    Where a step tokenizes its texts, it describes itself as that does.

    Raises:
        ConfigError, DeviceUnavailable: as `read_ensemble`.
    """
    ensemble = _ensemble(config)
    whole = dict(document)
    for field in TAKEN_OVER:
        if not whole.get(field) and field in ensemble.document:
            whole[field] = ensemble.document[field]
    _as_numbers(whole)
    declared = bool(document.get("output"))
    _take_labels_over(whole["output"], ensemble, config.directory.parent, declared=declared)
    if int(whole.get("max_batch_size", 0)):
        if "sequence_batching" not in whole:  # the host drops what has both
            whole.setdefault("dynamic_batching", {})
        if not document.get("input"):
            _make_ragged(whole["input"])
    named = document.get("input") and document.get("output")
    return whole if named or _tokenizing(ensemble) is None else with_description(whole)


def tokenizing_step(config: ModelConfig) -> ModelConfig | None:
    """Return the step that tokenizes the texts of a fused model; None where none does.

    Raises:
        ConfigError, DeviceUnavailable: as `read_ensemble`.
    """
    return _tokenizing(_ensemble(config))


def open_fused(
    config: ModelConfig,
    recorder: Recorder,
    store: Store,
    *,
    on_restart: Callable[[str], None],
) -> tuple[EnsembleRunner, list[Learner]]:
    """Load the ensemble that `config.fuse` names, each step on its own devices.

    Steps that lead only to outputs that `config` leaves out are not loaded.

    Raises:
        GeError: a step cannot be served, or both ends of a tensor do not agree; says which.
    """
    _refuse_sequences(config)
    whole = _ensemble(config)
    ensemble = whole.leading_to([tensor.name for tensor in config.outputs])
    dag = ensemble.dag
    most = _most_together(dag, config)
    steps = _configured(ensemble, config)
    check_members(dag, config, steps)
    pipelines: list[Pipeline] = []
    learners: list[Learner] = []
    with contextlib.ExitStack() as opened:
        for own in steps:
            log.info("ensemble %s: step %s", dag.name, own.name)
            served_as = f"{config.name}/{own.name}"
            devices = ",".join(own.placement.devices)
            with _named(dag.name, own.name):
                pipeline, learner = open_model(
                    own,
                    recorder.labelled(model=served_as, device=devices),
                    store,
                    on_restart=on_restart,
                    served_as=served_as,
                )
            opened.callback(pipeline.close)
            opened.callback(learner.close)
            pipelines.append(pipeline)
            learners.append(learner)
        ensemble_steps = _ensemble_steps(dag, pipelines, steps)
        opened.pop_all()
    runner = EnsembleRunner(dag, ensemble_steps, outside_layout(config), recorder, most=most)
    return runner, learners


def _ensemble(config: ModelConfig) -> Ensemble:
    """Return the ensemble of a fused model, as the server above serves it."""
    read = HostServer.above().document
    return read_ensemble(config.directory.parent.parent, config.fuse, read)


def _tokenizing(ensemble: Ensemble) -> ModelConfig | None:
    sent = frozenset(ensemble.dag.inputs)
    takers = (
        folder.config(os.environ)
        for step, folder in zip(ensemble.dag.steps, ensemble.folders, strict=True)
        if not sent.isdisjoint(step.inputs.values())
    )
    return next((step for step in takers if tokenizer_of(step) is not None), None)


def _refuse_sequences(config: ModelConfig) -> None:
    batching = config.sequence
    if batching is not None and (batching.states or batching.controls):
        raise ConfigError(
            f"model {config.name!r}: sequence_batching declares states or controls, which no step "
            f"of {config.fuse!r} gets; remove them, or leave sequences to a model of their own"
        )


def _most_together(dag: Dag, config: ModelConfig) -> int:
    """Return how many requests an instance may take through the steps at once; 0: any number.

    The host counts those at each step over all requests of the ensemble, and lets others wait.
    Source: core a02b0c0 src/ensemble_scheduler/ensemble_scheduler.cc, StepInflightRequestLimiter.
    """
    if 0 < dag.max_inflight < config.instances:
        raise ConfigError(
            f"model {config.name!r} has {config.instances} instances, and max_inflight_requests "
            f"of ensemble {dag.name!r} lets {dag.max_inflight} requests be at a step at once; "
            "expected no more instances than that: lower count in instance_group, or raise the "
            "limit"
        )
    return dag.max_inflight // config.instances


def _ensemble_steps(
    dag: Dag, pipelines: Sequence[Pipeline], steps: Sequence[ModelConfig]
) -> list[EnsembleStep]:
    """Return the steps, with what of them stays on their devices; there is room for it then.

    Raises:
        GeError: an executor died over it.
    """
    owner = uuid.uuid4().hex
    places = [
        Place(
            step=step,
            layout=pipeline.layout,
            inputs={tensor.name: tensor for tensor in own.inputs},
            outputs={tensor.name: tensor for tensor in own.outputs},
            memory=pipeline.retain_tensors(owner),
        )
        for step, pipeline, own in zip(dag.steps, pipelines, steps, strict=True)
    ]
    return [
        EnsembleStep(
            node=place.step,
            pipeline=pipeline,
            inputs=place.inputs,
            outputs=place.outputs,
            retention=_with_room(dag, place, pipeline, retention, owner),
        )
        for place, pipeline, retention in zip(
            places, pipelines, step_retentions(dag, places), strict=True
        )
    ]


def _with_room(
    dag: Dag, place: Place, pipeline: Pipeline, retention: StepRetention, owner: str
) -> StepRetention:
    """Return what stays of a step once there is room for it; else nothing does."""
    if not retention.outputs:
        return retention
    names = ", ".join(retention.outputs)
    try:
        pipeline.retain_tensors(owner, _buffer_bytes(pipeline, retention))
    except OutOfMemory as error:
        log.warning("ensemble %s: %s go through the host: %s", dag.name, names, error)
        return replace(retention, outputs={})
    log.info("ensemble %s: of %s stays on the device: %s", dag.name, place.step.model, names)
    return retention


def _buffer_bytes(pipeline: Pipeline, retention: StepRetention) -> list[int]:
    """Return the bytes of each output that stays, in the largest bucket, where they are known."""
    sizes = pipeline.costs.limits + (0,) * len(pipeline.layout.equal_axes)
    each = [
        pipeline.costs.steps[-1] * math.prod(output.row_shape(sizes)) * output.dtype.itemsize
        for output in pipeline.layout.outputs
        if output.name in retention.outputs
    ]
    return [nbytes for nbytes in each if nbytes]


def _configured(ensemble: Ensemble, config: ModelConfig) -> list[ModelConfig]:
    """Return the steps' configurations, completed from their graphs where they say too little.

    Where the fused model says whether it runs inline, that is said of them, too, and so is whether
    responses say what their runs were.
    """
    steps = []
    for at in ensemble.folders:
        with _named(ensemble.dag.name, at.path.name):
            own = _completed(at)
            steps.append(
                replace(
                    own,
                    instances=config.instances,
                    executor=_executor_of(own, config),
                    response_parameters=config.response_parameters,
                )
            )
    return steps


def _executor_of(step: ModelConfig, config: ModelConfig) -> str:
    """Return the parameter `executor` of a step: what the fused model says, else its own.

    What makes tensors of texts and images needs no device that others share. Where neither says
    anything each instance has it for itself, as a model of one instance does: a round trip to
    another process takes longer than a short text.
    """
    if config.executor != "auto":
        return config.executor
    file = find_model_file(step.directory, step.filename, step.device)
    machine = MachineConfig.here()
    apart = file.name.endswith(PREPROCESS_ENDS) and runs_inline(replace(step, instances=1), machine)
    return "inline" if apart else step.executor


@contextlib.contextmanager
def _named(ensemble: str, step: str) -> Iterator[None]:
    """Have errors say whose step they are of."""
    try:
        yield
    except GeError as error:
        raise type(error)(f"ensemble {ensemble!r}, step {step!r}: {error}") from error


def _completed(folder: ModelFolder) -> ModelConfig:
    given = folder.config(os.environ)
    if given.inputs and given.outputs:
        return given
    return folder.config(os.environ, complete_document(dict(folder.document), given))


def _take_labels_over(
    outputs: Sequence[dict[str, Any]], ensemble: Ensemble, folder: Path, *, declared: bool
) -> None:
    """Make labels those of the ensemble, or else of the step that writes the output.

    The host takes files of labels from a model's own folder only, from release 26.02 on (core
    f2226c0), so a copy has to lie there; those lie there already that `declared` outputs name.
    """
    owners = {
        tensor: (step.model, file)
        for step, of_step in zip(ensemble.dag.steps, ensemble.folders, strict=True)
        for output, tensor in step.outputs.items()
        if (file := _label_file(of_step.document, output))
    }
    for tensor in outputs:
        name = tensor["name"]
        if declared and tensor.get("label_filename"):
            continue
        tensor.pop("label_filename", None)  # the ensemble's own, as it was taken over
        if own := _label_file(ensemble.document, name):
            owners[name] = (ensemble.dag.name, own)
        if name not in owners:
            continue
        model, file = owners[name]
        copy = f"{model}.{Path(file).name}"
        if (folder / copy).is_file():
            tensor["label_filename"] = copy
        else:
            log.warning(
                "output %r has no labels here: the host takes them from a model's own folder; "
                "copy ../%s/%s to %s/%s",
                *(name, model, file, folder.name, copy),
            )


def _label_file(document: Mapping[str, Any], output: str) -> str:
    """Return what a configuration names for an output; "" where that is nothing."""
    for tensor in document.get("output", []):
        if tensor.get("name") == output:
            return str(tensor.get("label_filename", ""))
    return ""


def _make_ragged(inputs: Sequence[dict[str, Any]]) -> None:
    """Have the host collect unequal requests: every step plans its own sub-batches anyway."""
    for tensor in inputs:
        if -1 in tensor["dims"]:
            tensor["allow_ragged_batch"] = True


def _as_numbers(document: dict[str, Any]) -> None:
    """Make whole numbers of dims: protobuf's JSON has 64-bit numbers as texts, the host's not."""
    for field in ("input", "output"):
        document[field] = json.loads(json.dumps(document.get(field, [])))
        for tensor in document[field]:
            tensor["dims"] = [int(dim) for dim in tensor.get("dims", [])]
            if "reshape" in tensor:
                shape = tensor["reshape"].get("shape", [])
                tensor["reshape"]["shape"] = [int(dim) for dim in shape]
