"""The models of a repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ge_backend.errors import ConfigError
from ge_backend.model.config.model_folder import BACKEND, is_ensemble, read_document, served_version

__all__ = ["backend_of", "is_ours", "model_folders", "refused_folders"]

CONFIG = "config.pbtxt"
# What the host serves without a configuration, by one of its own backends.
SERVED_BARE = ("model.py", "model.plan", "model.savedmodel", "model.graphdef")
# Which backend it takes for a file, in this order, where config.pbtxt names none.
# Source: triton-inference-server/core@05295b7 src/model_config_utils.cc, AutoCompleteBackendFields.
TAKEN_FOR = {
    "model.savedmodel": "tensorflow",
    "model.graphdef": "tensorflow",
    "model.plan": "tensorrt",
    "model.onnx": "onnxruntime",
    "model.xml": "openvino",
    "model.pt": "pytorch",
    "model.py": "python",
}


def model_folders(repository: Path) -> list[Path]:
    """Return the folders of a repository's models, in the order of their names.

    Raises:
        ConfigError: it is not a folder, cannot be read, is a model itself, or has no models.
    """
    try:
        if not repository.is_dir():
            raise ConfigError(f"model repository {repository} is not a folder")
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
    """Whether a model is for this backend; raises as `backend_of`."""
    return backend_of(folder) == BACKEND


def backend_of(folder: Path) -> str:
    """Return which backend the host runs a model by; "" for one of its own ensembles.

    Raises:
        ConfigError: its configuration cannot be read, or the host would refuse it: without a folder
            of a version it does so for any backend, and for ensembles; or nothing names a backend.
        DeviceUnavailable: the library that reads config.pbtxt is missing.
    """
    path = folder.resolve()
    document = read_document(path)
    named = str(document.get("backend", ""))
    if named == BACKEND:
        return named
    version = path / served_version(path, document)
    if named or is_ensemble(document):
        return named
    if platform := document.get("platform"):  # such as onnxruntime_onnx
        return str(platform).partition("_")[0]
    file = document.get("default_model_filename")
    for name, backend in TAKEN_FOR.items():
        if file == name if file else (version / name).exists():
            return backend
    raise ConfigError(f'{path / CONFIG} names no backend; write backend: "{BACKEND}"')


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
