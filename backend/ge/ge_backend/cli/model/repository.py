"""The models of a repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ge_backend.config.model_folder import BACKEND, read_document, served_version
from ge_backend.errors import ConfigError

__all__ = ["is_ours", "model_folders", "refused_folders"]

CONFIG = "config.pbtxt"
# What the host serves without a configuration, by one of its own backends.
SERVED_BARE = ("model.py", "model.plan", "model.savedmodel", "model.graphdef")


def model_folders(repository: Path) -> list[Path]:
    """Return the folders of a repository's models, in the order of their names.

    Raises:
        ConfigError: it cannot be read, is a model itself, or has no models.
    """
    try:
        found = [entry.parent for entry in repository.glob(f"*/{CONFIG}")]
        if (repository / CONFIG).is_file():
            raise ConfigError(f"{repository} is one model; expected the folder above it")
    except OSError as error:
        raise ConfigError(f"{repository} cannot be read: {error}") from error
    if not found:
        raise ConfigError(
            f"{repository} has no models; expected a folder of folders with a {CONFIG} each"
        )
    return sorted(found)


def is_ours(folder: Path) -> bool:
    """Whether a model is for this backend.

    Raises:
        ConfigError: its configuration cannot be read, or the host would refuse it: without a folder
            of a version it does so for any backend, and for ensembles.
        DeviceUnavailable: the library that reads config.pbtxt is missing.
    """
    document = read_document(folder.resolve())
    if document.get("backend") == BACKEND:
        return True
    served_version(folder.resolve(), document)
    return False


def refused_folders(repository: Path) -> Iterator[tuple[str, str]]:
    """Yield the folders that the host takes for models and refuses, and why: no configuration.

    One of them is enough to keep a server from starting.
    """
    for folder in sorted(entry for entry in repository.iterdir() if entry.is_dir()):
        bare = [path for name in SERVED_BARE for path in folder.glob(f"[0-9]*/{name}")]
        try:
            there = (folder / CONFIG).exists()
        except OSError as error:
            yield folder.name, f"{folder} cannot be read: {error}"
            continue
        if not (bare or there):
            reason = (
                f"{folder} has no {CONFIG}, and Triton takes each folder for a model; expected one "
                f'with the line backend: "{BACKEND}", or that the folder is elsewhere'
            )
            yield folder.name, reason
