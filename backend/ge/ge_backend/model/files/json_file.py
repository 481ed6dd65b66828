"""Files beside a model that hold a JSON object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ge_backend.errors import ModelError

__all__ = ["read_json"]

MAX_JSON_BYTES = 64 * 2**20


def read_json(path: Path, most_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the JSON object of a file.

    Raises:
        ModelError: it is none, or larger; of a missing one, with what a checkpoint has.
    """
    try:
        if path.stat().st_size > most_bytes:
            raise ModelError(f"{path}: larger than {most_bytes} bytes")
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(
            f"no {path.name} in {path.parent}; a checkpoint folder has config.json, *.safetensors, "
            "tokenizer.json and generation_config.json"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: expected a JSON object")
    return content
