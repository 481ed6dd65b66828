"""Names of files that a configuration gives: none leaves the model's own folder."""

from __future__ import annotations

import os
from pathlib import Path

from ge_backend.errors import ConfigError

__all__ = ["inside"]


def inside(folder: Path, name: str, what: str) -> Path:
    """Return the file of this name in a folder.

    A client that loads a model may give a configuration with it, so a name is not trusted. Links
    in the folder are: they are the repository's.

    Raises:
        ConfigError: it lies elsewhere; names `what`, the setting.
    """
    path = Path(os.path.normpath(folder / name))
    if not path.is_relative_to(os.path.normpath(folder)):
        raise ConfigError(f"{what} is {name!r}, which leaves the model's folder {folder}")
    return path
