"""What a block of config.pbtxt must say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ge_backend.errors import ConfigError

__all__ = ["required"]


def required(block: Mapping[str, Any], key: str, what: str) -> str:
    """Return what a block says under a key.

    Raises:
        ConfigError: nothing; names `what`, the block, and what else it says.
    """
    said = str(block.get(key, ""))
    if not said:
        raise ConfigError(f"{what} has no {key}; add it beside {dict(block) or 'nothing'}")
    return said
