"""What a preset changes in one model's configuration, and what of it does not apply there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ge_backend.errors import ConfigError
from ge_backend.model.config.host_fields import stalling
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.config.model_folder import is_ensemble, step_names
from ge_backend.shapes.buckets.axis import ROWS, parse_axis
from ge_tools.model.applied import BATCHING_DELAY, INSTANCES
from ge_tools.model.presets import DEFAULTS, Preset

__all__ = ["Change", "Changes", "changes_of", "refuse_ensemble"]

OF_THE_HOST = (INSTANCES, BATCHING_DELAY, "max_queue_size")
OF_STEPS = ("threads", "max_elements", "priority")
# What takes several instances.
OF_SEVERAL = (INSTANCES, "max_queue_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting; `before` is "-" where the model has not even the block that it is in."""

    key: str
    before: str
    after: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is to be done to a config.pbtxt.

    Attributes:
        left_out: why the model does not take a setting of the preset, by its key.
        notes: what the preset leaves as it is and works against it.
    """

    made: tuple[Change, ...]
    left_out: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def settings(self) -> dict[str, str]:
        """The new values by key."""
        return {change.key: change.after for change in self.made}


def refuse_ensemble(document: Mapping[str, Any]) -> None:
    """Check that a configuration is not an ensemble's, which runs nothing itself.

    Raises:
        ConfigError: it is; names its steps.
    """
    if is_ensemble(document):
        names = ", ".join(step_names(document))
        raise ConfigError(
            f"model {document['name']!r} is an ensemble and has no settings of its own; apply the "
            f"preset to its steps: {names}"
        )


def changes_of(preset: Preset, document: Mapping[str, Any], config: ModelConfig) -> Changes:
    """Return what the preset changes in a model; what is as it should be already is not in it.

    `config` is what the backend reads of `document`, the host's JSON.
    """
    made: list[Change] = []
    left_out: dict[str, str] = {}
    for key, choice in preset.choices.items():
        before = _present(key, document, config)
        if before == choice.value:
            continue
        obstacle = _obstacle(key, choice.value, document, config)
        if obstacle:
            left_out[key] = obstacle
        else:
            made.append(Change(key=key, before=before, after=choice.value, why=choice.why))
    notes = stalling(document)
    if any(
        change.key == "max_elements" and change.after != DEFAULTS[change.key] for change in made
    ):
        notes += _of_elements(preset.choices["max_elements"].value, document, config)
    return Changes(made=tuple(made), left_out=left_out, notes=notes)


def _present(key: str, document: Mapping[str, Any], config: ModelConfig) -> str:
    """Return a setting's value as it is now."""
    if key == INSTANCES:
        return "+".join(str(g.get("count", 1)) for g in document.get("instance_group", [{}]))
    if key == BATCHING_DELAY:
        batching = document.get("dynamic_batching")
        if batching is None:
            missing = _batches(document) and not _completed(config)
            return "-" if missing else DEFAULTS[key]
        return str(batching.get("max_queue_delay_microseconds", DEFAULTS[key]))
    given = document.get("parameters", {}).get(key, {}).get("string_value", DEFAULTS[key])
    return str(given).strip()


def _completed(config: ModelConfig) -> bool:
    """Whether `dynamic_batching` is filled in when the model is loaded."""
    return bool(config.fuse) or not (config.inputs and config.outputs)


def _batches(document: Mapping[str, Any]) -> bool:
    """Whether `dynamic_batching` could be there."""
    return bool(document.get("max_batch_size")) and "sequence_batching" not in document


def _obstacle(key: str, value: str, document: Mapping[str, Any], config: ModelConfig) -> str:
    """Return why a setting does not apply to a model; "" where it does."""
    if "sequence_batching" in document and key in OF_THE_HOST:
        return "the model has sequence_batching, whose slots and order are the host's"
    if config.fuse and (obstacle := _of_fused(key, value, config)):
        return obstacle
    if key == INSTANCES and len(document.get("instance_group", [])) > 1:
        return "instance_group has several groups; set their counts by hand"
    if key == BATCHING_DELAY and "static_model" in document.get("parameters", {}):
        return "the parameter static_model excludes dynamic_batching"
    if key == "max_elements" and value != DEFAULTS[key]:
        return _uncounted(config) or _too_few_elements(int(value), config)
    return ""


def _of_fused(key: str, value: str, config: ModelConfig) -> str:
    """Return why a setting does not apply to a model that runs an ensemble; "" where it does."""
    if key in OF_STEPS:
        return f"it is a setting of each step of the ensemble {config.fuse!r}"
    if config.placement.kind == "cpu" and key in OF_SEVERAL and value != DEFAULTS[key]:
        return (
            f"on a CPU each step of the ensemble {config.fuse!r} runs soonest in the process of a "
            "single instance, with which a queue would be lost"
        )
    return ""


def _uncounted(config: ModelConfig) -> str:
    """Return why there are no elements to count: rows times padded sizes; "" where there may be."""
    if not (config.inputs and config.outputs):
        return ""  # completed when the model is loaded
    if config.max_batch_size <= 1:
        return f"max_batch_size is {config.max_batch_size}, and it only bounds runs of several rows"
    free = any(-1 in item.graph_dims for item in config.inputs)
    padded = config.placement.kind != "cpu" or any(item.ragged for item in config.inputs)
    if free and padded:
        return ""
    return "no size of the model is padded, so that every row counts as one element"


def _of_elements(value: str, document: Mapping[str, Any], config: ModelConfig) -> tuple[str, ...]:
    """Return what to know of a limit on elements where config.pbtxt does not tell how many."""
    bounded = config.buckets or "max_length" in document.get("parameters", {})
    whole = all(item.dtype.numpy.kind in "iu" for item in config.inputs if item.ragged)
    if config.inputs and (bounded or whole):
        return ()
    note = (
        f"max_elements: rows of more than {value} elements, as images and sounds have, run one by "
        "one; where no size is padded it changes nothing"
    )
    return (note,)


def _too_few_elements(most: int, config: ModelConfig) -> str:
    """Return why a limit could leave a size without a bucket; "" where it does not."""
    whole = config.bucket_file is not None or config.declared_buckets
    if whole or any(config.directory.glob("*.om")):
        return "the model's buckets are listed whole; set it by hand, at least its longest row's"
    longest = _longest_row(config)
    if longest > most:
        return f"one row of the model's largest bucket has {longest} elements, more than {most}"
    return ""


def _longest_row(config: ModelConfig) -> int:
    """Return the elements of one row in the largest bucket, as far as config.pbtxt tells.

    An axis without sizes of its own goes up to `max_length`; the graph may allow less.
    """
    named = [
        parse_axis(text, name=name).largest for name, text in config.buckets.items() if name != ROWS
    ]
    axes = max((item.graph_dims.count(-1) for item in config.inputs if item.ragged), default=1)
    return math.prod([*named, *[config.max_length] * (axes - len(named))])
