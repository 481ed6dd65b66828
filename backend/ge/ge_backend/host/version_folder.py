"""Which folder a model's version is, by what the host says."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from ge_backend.errors import ConfigError

__all__ = ["version_folder"]


def version_folder(config: Mapping[str, Any]) -> Path:
    """Return the version folder of the model whose configuration this is.

    What the host calls the model's directory is that of the model's file, so a
    `default_model_filename` with folders in it leads there, or out of the model.
    Seen on Triton 2.51.

    Raises:
        ConfigError: this Python cannot open it; that of 2.51's stub knows ASCII alone, whatever
            the locale is.
    """
    given = str(pb_utils.get_model_dir())
    try:
        os.path.realpath(given).encode()  # it asks the system; what that answers is spelt out, too
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the model's folder {given!r} cannot be opened: the stub's Python knows paths in "
            f"{sys.getfilesystemencoding()}; rename what is not ASCII, behind links too"
        ) from error
    folders = os.path.dirname(str(config.get("default_model_filename", "")))  # noqa: PTH120 - a text
    return Path(given.removesuffix(folders))
