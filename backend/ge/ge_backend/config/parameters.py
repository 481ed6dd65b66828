"""The `parameters` of a model in our own keys, and what they say that is no key of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ge_backend.config.cpp_ge_keys import InputShapes, translate
from ge_backend.config.placement import Placement, place
from ge_backend.config.settings import COMPILE_PREFIXES

__all__ = ["ModelParameters"]

# The kind of device for which models are compiled ahead.
COMPILED = "npu"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParameters:
    """What a configuration says under `parameters`.

    Attributes:
        values: by key; keys of the C++ GE backend have become ours, or options of the compiler.
        placement: the devices.
        instances: how many instances the model has.
        declared_buckets: the shapes that are the model's buckets; empty where none are declared so.
        notes: what was said and has no effect, for the log.
    """

    values: Mapping[str, str]
    placement: Placement
    instances: int
    declared_buckets: tuple[InputShapes, ...]
    notes: tuple[str, ...]

    @classmethod
    def read(cls, config: Mapping[str, Any], environment: Mapping[str, str]) -> ModelParameters:
        """Read the host's model configuration, as JSON gives it, and `GE_DEVICE`.

        Raises:
            ConfigError: a value cannot be used, or keys contradict each other.
        """
        given = {
            key: str(value.get("string_value", ""))
            for key, value in dict(config.get("parameters", {})).items()
        }
        placement = place(
            device=given.get("device", "").strip(),
            device_ids=given.get("device_ids", "").strip(),
            forced=environment.get("GE_DEVICE", ""),
        )
        instances = sum(int(g.get("count", 1)) for g in config.get("instance_group", [])) or 1
        translated = translate(
            given,
            kind=placement.kind,
            devices=len(placement.devices),
            instances=instances,
            dynamic_batching="dynamic_batching" in config,
        )
        notes = (*placement.notes, *translated.notes)
        idle = sorted(key for key in translated.parameters if key.startswith(COMPILE_PREFIXES))
        if idle and placement.kind != COMPILED:
            notes += (f"{', '.join(idle)}: no effect on {placement.kind}, which compiles nothing",)
        return cls(
            values=translated.parameters,
            placement=placement,
            instances=instances,
            declared_buckets=translated.declared_buckets,
            notes=notes,
        )
