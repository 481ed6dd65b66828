"""Where a model of the server lies in the repositories that this API sees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["find_folder"]


def find_folder(repositories: Sequence[Path], model: str) -> Path | None:
    """Return the folder of a model that the server knows; None where no repository has it."""
    for repository in repositories:
        folder = repository / model
        if folder.parent == repository and (folder / "config.pbtxt").is_file():
            return folder
    return None
