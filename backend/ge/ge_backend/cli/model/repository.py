"""The models of a repository."""

from __future__ import annotations

from pathlib import Path

from ge_backend.errors import ConfigError

__all__ = ["model_folders"]


def model_folders(repository: Path) -> list[Path]:
    """Return the folders of a repository's models, in the order of their names.

    Raises:
        ConfigError: it cannot be read, or has no models.
    """
    try:
        found = [entry.parent for entry in repository.glob("*/config.pbtxt")]
    except OSError as error:
        raise ConfigError(f"{repository} cannot be read: {error}") from error
    if not found:
        raise ConfigError(
            f"{repository} has no models; expected a folder of folders with a config.pbtxt each"
        )
    return sorted(found)
