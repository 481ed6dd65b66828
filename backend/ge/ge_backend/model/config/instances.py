"""The instances of a model, as `instance_group` lists them and the host calls them.

Source: triton-inference-server/core, src/model_config_utils.cc `NormalizeInstanceGroup` for what
groups are called and src/backend_model.cc `PrepareInstances` for instances: `<group>_<number>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["instance_names", "instance_number"]


def instance_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of all instances, in the order of the groups.

    Args:
        config: the host's model configuration; where it is not complete, groups without a name are
            called after the model and their place, and one without a count has one instance.
    """
    model = config["name"]
    groups = config.get("instance_group") or [{"name": model}]
    return tuple(
        f"{group.get('name') or f'{model}_{place}'}_{number}"
        for place, group in enumerate(groups)
        for number in range(int(group.get("count", 0)) or 1)
    )


def instance_number(config: Mapping[str, Any], name: str) -> int:
    """Return an instance's number among all of its model; 0 for one that is not listed."""
    names = instance_names(config)
    return names.index(name) if name in names else 0
