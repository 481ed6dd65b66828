"""The LoRA adapters beside the models' checkpoints, as far as this API sees them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ge_backend.config.model_folder import read_folder
from ge_backend.device.language.adapter_folder import adapter_folders
from ge_backend.errors import GeError
from ge_backend.openai.folders import find_folder

__all__ = ["adapter_names"]


def adapter_names(repositories: Sequence[Path], model: str) -> list[str]:
    """Return the adapters of a model that the server knows; none where its folder is not here."""
    folder = find_folder(repositories, model)
    try:
        return sorted(adapter_folders(read_folder(folder).directory)) if folder else []
    except GeError:  # the server tells those who ask for one
        return []
