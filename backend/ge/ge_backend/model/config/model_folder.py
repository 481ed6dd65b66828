"""A model's folder as the host reads it: `config.pbtxt` and the version that is served."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge_backend.errors import ConfigError, DeviceUnavailable
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.config.written import sets_max_batch_size

__all__ = [
    "BACKEND",
    "ModelFolder",
    "config_file",
    "is_ensemble",
    "parse_config",
    "read_document",
    "read_folder",
    "served_version",
    "served_versions",
    "step_names",
]


_VERSION = re.compile("0|[1-9][0-9]{0,17}")
# What config.pbtxt calls this backend.
BACKEND = "ge"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """One model of a repository.

    Attributes:
        version: the version folder that the host would serve: of several the latest.
        document: the configuration as the host gives it to a backend, by the fields of its JSON.
    """

    path: Path
    version: str
    document: Mapping[str, Any]

    @property
    def config_file(self) -> Path:
        """Where the configuration is."""
        return self.path / "config.pbtxt"

    @property
    def directory(self) -> Path:
        """The version folder, which holds the model file."""
        return self.path / self.version

    @property
    def filename(self) -> str:
        """The model file that the configuration names, "" where it names none."""
        return str(self.document.get("default_model_filename", ""))

    @property
    def fuse(self) -> str:
        """The ensemble that the model runs, "" for all but fused models."""
        fuse = self.document.get("parameters", {}).get("fuse", {})
        return str(fuse.get("string_value", ""))

    def config(
        self, environment: Mapping[str, str], document: Mapping[str, Any] | None = None
    ) -> ModelConfig:
        """Return the model's settings, from a completed `document` if one is given.

        Raises:
            ConfigError: a key is unknown or a value cannot be used.
        """
        return ModelConfig.read(
            self.document if document is None else document,
            directory=self.directory,
            version=self.version,
            environment=environment,
        )


def read_folder(path: Path, read: Callable[[Path], Mapping[str, Any]] | None = None) -> ModelFolder:
    """Return what a model's folder holds, which the host calls by its name also if that is a link.

    Args:
        path: the model's folder.
        read: gives its configuration; None reads config.pbtxt.

    Raises:
        ConfigError: it is not the folder of a model, or the model is another backend's.
        DeviceUnavailable: the library that reads config.pbtxt is missing.
    """
    path = path.resolve() if path.name in ("", "..") else path.absolute()
    document = (read or read_document)(path)
    if is_ensemble(document):
        raise ConfigError(
            f"{path} is an ensemble, which runs nothing itself; expected the folder of one of its "
            f"steps: {', '.join(step_names(document))}"
        )
    if document.get("backend") != BACKEND:
        file = path / "config.pbtxt"
        raise ConfigError(
            f"{file}: backend is {document.get('backend', '')!r}, expected {BACKEND!r}"
        )
    return ModelFolder(path=path, version=served_version(path, document), document=document)


def is_ensemble(document: Mapping[str, Any]) -> bool:
    """Whether a configuration is that of one of the host's own ensembles."""
    return "ensemble_scheduling" in document or document.get("platform") == "ensemble"


def step_names(document: Mapping[str, Any]) -> list[str]:
    """Return the models of an ensemble's steps, each once."""
    steps = document.get("ensemble_scheduling", {}).get("step", [])
    return list(dict.fromkeys(str(step.get("model_name", "")) for step in steps))


def parse_config(text: str, name: str) -> Any:
    """Return the text of a config.pbtxt as the host's own message; `name` is for messages.

    Raises:
        ConfigError: the host would not read it either.
        DeviceUnavailable: the library that knows the message is missing.
    """
    try:
        from google.protobuf import text_format
        from tritonclient.grpc import model_config_pb2
    except ImportError as error:
        raise DeviceUnavailable(
            f"config.pbtxt is read with tritonclient ({error}); "
            "pip install 'triton-ge-backend[server]'"
        ) from error
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise ConfigError(f"{name}, line and column {error}") from error


def config_file(path: Path, name: str = "") -> Path:
    """Return the file of a model's folder that a server reads.

    Args:
        path: the model's folder.
        name: what the server's `--model-config-name` says; "" where it has none.
    """
    named = path / "configs" / f"{name}.pbtxt"
    return named if name and named.is_file() else path / "config.pbtxt"


def read_document(path: Path, config_name: str = "") -> dict[str, Any]:
    """Return the configuration of a model's folder, by the fields of the host's JSON.

    A `max_batch_size` of 0 is in it only if it is written.

    Args:
        path: the model's folder.
        config_name: as for `config_file`.

    Raises:
        ConfigError: there is none, or the host would not read it either.
        DeviceUnavailable: the library that reads config.pbtxt is missing.
    """
    file = config_file(path, config_name)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file} cannot be read ({error}); expected the folder of one model"
        ) from error
    document = _as_json(parse_config(text, str(file)))
    document.setdefault("name", path.name)
    if sets_max_batch_size(text):
        document.setdefault("max_batch_size", 0)
    return document


def _as_json(message: Any) -> dict[str, Any]:
    from google.protobuf import json_format

    document: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return document


def served_version(path: Path, document: Mapping[str, Any]) -> str:
    """Return the version that the host serves, of several the latest.

    Raises:
        ConfigError: there is none, and without one the host refuses a model; or it is not readable.
    """
    found = served_versions(path, document)
    if not found:
        listed = document.get("version_policy", {}).get("specific", {}).get("versions")
        wanted = "1" if listed is None else ", ".join(map(str, listed))
        empty = is_ensemble(document) or "fuse" in document.get("parameters", {})
        raise ConfigError(
            f"{path} has no version folder; expected a folder {wanted} in it"
            + (", which may be empty" if empty else "")
        )
    return found[-1]


def served_versions(path: Path, document: Mapping[str, Any]) -> list[str]:
    """Return the versions that the host serves, in their order, as its `version_policy` says.

    Source: core r24.10 src/model_repository_manager/model_lifecycle.cc, `VersionsToLoad`: folders
    whose names are no numbers, or begin with a zero, are ignored; without a policy the latest one
    is served.

    Raises:
        ConfigError: it cannot be read.
    """
    policy = document.get("version_policy", {})
    try:
        names = [entry.name for entry in path.iterdir() if entry.is_dir()]
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error}); expected the folder of a model"
        ) from error
    found = sorted((name for name in names if _VERSION.fullmatch(name)), key=int)
    if "specific" in policy:
        listed = set(map(str, policy["specific"].get("versions", [])))
        return [name for name in found if name in listed]
    if "all" in policy:
        return found
    return found[-int(policy.get("latest", {}).get("num_versions", 1) or 1) :]
