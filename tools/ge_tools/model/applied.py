"""Writing settings into a model's config.pbtxt."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ge_backend.errors import ConfigError
from ge_backend.model.config.model_folder import parse_config
from ge_tools.model.pbtxt import set_number, set_parameter
from ge_tools.model.replacing import replacing

__all__ = ["BATCHING_DELAY", "INSTANCES", "apply_settings", "how_to_use"]

# What is no parameter but a field of the host's.
INSTANCES = "instance_group.count"
BATCHING_DELAY = "dynamic_batching.max_queue_delay_microseconds"
# Without a kind the host looks for a GPU; what owns the device is the executor, not the instance.
_NEW_INSTANCES = "instance_group [ {{ count: {} kind: KIND_CPU }} ]"
_NEW_DELAY = "dynamic_batching {{ max_queue_delay_microseconds: {} }}"


def apply_settings(file: Path, settings: Mapping[str, str], *, dry_run: bool = False) -> str:
    """Set parameters in a config.pbtxt, and return the difference as a unified diff.

    Comments, order, layout and the ends of lines stay; the file is replaced whole, so no server
    reads half of it. `INSTANCES` and `BATCHING_DELAY` are set as the host's own fields. In a dry
    run nothing is written.

    Raises:
        ConfigError: the file cannot be read, edited or written; it is as it was then.
    """
    try:
        with file.open(encoding="utf-8", newline="") as opened:  # the ends of lines as they are
            before = opened.read()
        after = _edited(before, settings, file)
        if after != before and not dry_run:
            with replacing(file.resolve()) as draft:
                draft.write_text(after, encoding="utf-8", newline="")
    except OSError as error:
        raise ConfigError(f"{file} cannot be changed: {error}") from error
    old, new, name = before.splitlines(), after.splitlines(), str(file)
    return "\n".join(difflib.unified_diff(old, new, fromfile=name, tofile=name, lineterm=""))


def how_to_use(model: str) -> str:
    """Return the line for a person that says how a server gets the settings of a model."""
    return (
        "applied; start the server again to use them, or, where clients may load models: "
        f"curl -X POST localhost:8000/v2/repository/models/{model}/load"
    )


def _edited(before: str, settings: Mapping[str, str], file: Path) -> str:
    """Return the text with the settings, once it is sure that nothing else has changed."""
    expected = parse_config(before, str(file))
    after = before
    for key, value in settings.items():
        after = _set(after, key, value)
        _expect(expected, key, value)
    if parse_config(after, str(file)) != expected:
        raise ConfigError(
            f"{file} is written in a way that this command cannot edit; set "
            f"{', '.join(settings)} by hand"
        )
    return after


def _set(text: str, key: str, value: str) -> str:
    if key == INSTANCES:
        new = _NEW_INSTANCES.format(value)
        return set_number(text, "instance_group", "count", int(value), new_block=new)
    if key == BATCHING_DELAY:
        block, name = key.split(".")
        return set_number(text, block, name, int(value), new_block=_NEW_DELAY.format(value))
    return set_parameter(text, key, value)


def _expect(message: Any, key: str, value: str) -> None:
    """Make the parsed configuration mean what the text should."""
    if key == INSTANCES:
        group = message.instance_group[-1] if message.instance_group else None
        if group is None:
            group = message.instance_group.add()
            group.kind = group.KIND_CPU
        group.count = int(value)
    elif key == BATCHING_DELAY:
        message.dynamic_batching.SetInParent()
        message.dynamic_batching.max_queue_delay_microseconds = int(value)
    else:
        message.parameters[key].string_value = value
