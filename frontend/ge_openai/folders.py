"""Where a model of the server lies in the repositories that this API sees, and its adapters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ge_backend.errors import GeError
from ge_backend.model.config.model_folder import read_folder
from ge_text.models.adapter_folder import adapter_names as names_beside

__all__ = ["adapter_names", "find_folder"]


def find_folder(repositories: Sequence[Path], model: str) -> Path | None:
    """Return the folder of a model that the server knows; None where no repository has it.

    Raises:
        OSError: who serves the API may not look there.
    """
    for repository in repositories:
        folder = repository / model
        if folder.parent == repository and (folder / "config.pbtxt").is_file():
            return folder
    return None


def adapter_names(repositories: Sequence[Path], model: str) -> list[str]:
    """Return the LoRA adapters beside a model's checkpoint; none where its folder is not here."""
    try:
        folder = find_folder(repositories, model)
        return names_beside(read_folder(folder).directory) if folder else []
    except (GeError, OSError):  # the server tells those who ask for one
        return []
