"""Writing parameters into a model's config.pbtxt."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from ge_backend.cli.model.parameter import set_parameter
from ge_backend.cli.model.replacing import replacing
from ge_backend.errors import ConfigError
from ge_backend.model_folder import parse_config

__all__ = ["apply_parameters"]


def apply_parameters(file: Path, parameters: Mapping[str, str]) -> str:
    """Set parameters in a config.pbtxt, and return the difference as a unified diff.

    Comments, order and layout stay; the file is replaced whole, so no server reads half of it.

    Raises:
        ConfigError: the file cannot be read, edited or written; it is as it was then.
    """
    try:
        before = file.read_text(encoding="utf-8")
        after = _edited(before, parameters, file)
        if after != before:
            with replacing(file.resolve()) as draft:
                draft.write_text(after, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be changed: {error}") from error
    old, new = before.splitlines(), after.splitlines()
    name = str(file)
    return "\n".join(difflib.unified_diff(old, new, fromfile=name, tofile=name, lineterm=""))


def _edited(before: str, parameters: Mapping[str, str], file: Path) -> str:
    """Return the text with the parameters set, once it is sure that nothing else has changed."""
    expected = parse_config(before, str(file))
    after = before
    for key, value in parameters.items():
        after = set_parameter(after, key, value)
        expected.parameters[key].string_value = value
    if parse_config(after, str(file)) != expected:
        raise ConfigError(
            f"{file} is written in a way that this command cannot edit; set the parameters by hand"
        )
    return after
