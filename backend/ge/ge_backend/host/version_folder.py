"""Which folder a model's version is, by what the host says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

__all__ = ["version_folder"]


def version_folder(config: Mapping[str, Any]) -> Path:
    """Return the version folder of the model whose configuration this is.

    What the host calls the model's directory is that of the model's file, so a
    `default_model_filename` with folders in it leads there, or out of the model.
    Seen on Triton 2.51.
    """
    told = str(pb_utils.get_model_dir())
    folders = os.path.dirname(str(config.get("default_model_filename", "")))  # noqa: PTH120 - a text
    return Path(told.removesuffix(folders))
