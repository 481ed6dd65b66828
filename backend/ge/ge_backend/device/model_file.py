"""Which file of a version folder is the model."""

from __future__ import annotations

from pathlib import Path

from ge_backend.errors import ModelError

__all__ = ["find_model_file"]

# In this order when a folder holds several and config.pbtxt names none.
NAMES = ("model.onnx", "model.pt2", "model.pt", "model.null", "tokenizer.json")


def find_model_file(directory: Path, filename: str) -> Path:
    """Return the model file of a version folder: `default_model_filename`, else a known name.

    Raises:
        ModelError: there is none; says what was looked for and what is there.
    """
    candidates = (filename,) if filename else NAMES
    for name in candidates:
        if (directory / name).is_file():
            return directory / name
    there = ", ".join(sorted(path.name for path in directory.iterdir())) or "nothing"
    raise ModelError(
        f"no model file in {directory}: looked for {', '.join(candidates)}, found {there}; "
        "put the model there or name it with default_model_filename"
    )
