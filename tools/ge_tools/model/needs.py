"""What a model repository needs of a machine: devices, engines and models that can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ge_backend.device.base import DEVICE_KINDS
from ge_backend.device.engines import preferred
from ge_backend.errors import ConfigError, GeError, ModelError
from ge_backend.kinds import FUSED, TEXT, kind_of
from ge_backend.model.config.engine_table import DEVICE_ENDS, EngineRow, engines_for, file_ends
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.config.model_folder import BACKEND, ModelFolder, read_document, read_folder
from ge_backend.model.files.model_file import find_model_file
from ge_backend.serving.connect import AUTO
from ge_backend.serving.ensemble.members import read_ensemble
from ge_text.stub.opening import check_generation
from ge_tools.model.hosted import check_hosted
from ge_tools.model.repository import backend_of, model_folders, refused_folders

__all__ = ["Needs", "read_needs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the models of a repository need.

    Attributes:
        devices: the models of ours that run on a device, by its name.
        engines: the models of ours that an engine runs, by its module.
        extras: of this package, with commas between, that install an engine and all that goes with
            it, by its module.
        others: the backend by a model of another one that does not bring it.
        broken: what is wrong, by the model that cannot be used, or folder that is none.
        gpu: the models of ours with instances of KIND_GPU.
    """

    devices: Mapping[str, tuple[str, ...]]
    engines: Mapping[str, tuple[str, ...]]
    extras: Mapping[str, str]
    others: Mapping[str, str]
    broken: Mapping[str, str]
    gpu: tuple[str, ...] = ()


def read_needs(repository: Path, environment: Mapping[str, str]) -> Needs:
    """Return what a repository needs; no model is opened.

    Args:
        repository: the folder of models; those of other backends need nothing of ours but that
            backend and a folder of a version.
        environment: `GE_DEVICE` is for models that name no device.

    Raises:
        ConfigError: there is no such repository, or it is empty.
        DeviceUnavailable: the library that reads config.pbtxt is missing.
    """
    devices: dict[str, list[str]] = {}
    engines: dict[str, list[str]] = {}
    extras: dict[str, set[str]] = {}
    others: dict[str, str] = {}
    gpu: list[str] = []
    folders = model_folders(repository)
    broken = dict(refused_folders(repository))
    for folder in folders:
        try:
            _check_name(folder)
            backend = backend_of(folder)
            if backend != BACKEND:
                others |= _of_others(folder, backend)
                continue
            model = read_folder(folder)
            gpu += _on_gpus(model)
            config = model.config(environment)
            if kind_of(config) is FUSED:
                read_ensemble(repository, config.fuse)  # its steps lie beside it
                continue
            engine = _engine(model.directory, config)
            for device in config.placement.devices:
                devices.setdefault(device, []).append(folder.name)
            if engine is not None:
                for module in engine.libraries:
                    engines.setdefault(module, []).append(folder.name)
                    extras.setdefault(module, set()).update(engine.extra.split(","))
        except GeError as error:
            broken[folder.name] = str(error)
    return Needs(
        devices={name: tuple(models) for name, models in devices.items()},
        engines={name: tuple(models) for name, models in engines.items()},
        extras={name: ",".join(sorted(names)) for name, names in extras.items()},
        others=others,
        broken=broken,
        gpu=tuple(gpu),
    )


def _of_others(folder: Path, backend: str) -> dict[str, str]:
    """Return the backend that a model needs, by its name: not one that lies in its own folder.

    Where that may lie: core r24.10 src/backend_model.cc, search_paths.

    Raises:
        ConfigError: it is an ensemble that the host would refuse.
    """
    if not backend:
        check_hosted(folder)
        return {}
    return {} if any(folder.rglob("libtriton_*.so")) else {folder.name: backend}


def _check_name(folder: Path) -> None:
    """See that a configuration with a name has its folder's: else the host does not start.

    Raises:
        ConfigError: it has another; or it cannot be read.
    """
    name = read_document(folder)["name"]
    if name != folder.name:
        raise ConfigError(
            f"{folder / 'config.pbtxt'} has the name {name!r}, and Triton takes none but the "
            "folder's; leave the name out"
        )


def _on_gpus(model: ModelFolder) -> list[str]:
    """Return the model's name if it has instances that the host starts on GPUs only."""
    groups = model.document.get("instance_group", [])
    return [model.path.name] if any(g.get("kind") == "KIND_GPU" for g in groups) else []


def _engine(directory: Path, config: ModelConfig) -> EngineRow | None:
    """Return what runs the model file of a version folder; None where that is its device itself.

    Raises:
        ConfigError, ModelError: nothing can, whatever is installed; as loading says it.
    """
    path, kind = find_model_file(directory, config.filename, config.device), config.placement.kind
    rows = engines_for(path.name, kind)
    named = [row for row in rows if row.name == config.engine]
    if kind_of(config) is TEXT:  # it has engines of its own
        check_generation(config)
    # That a device is unknown it says itself.
    elif kind in DEVICE_KINDS and not path.name.endswith(DEVICE_ENDS.get(kind, ())):
        _check(path, config, rows, named)
    return preferred(named or rows, config.precision) if rows else None


def _check(
    path: Path, config: ModelConfig, rows: Sequence[EngineRow], named: Sequence[EngineRow]
) -> None:
    """See that there is an engine for a file, its configured name, and its precision."""
    kind = config.placement.kind
    if not rows:
        ends = ", ".join((*DEVICE_ENDS.get(kind, ()), *file_ends(kind)))
        raise ModelError(f"{path}: the {kind} device runs {ends}")
    names = ", ".join(row.name for row in named or rows)
    if config.engine not in {"", AUTO} and not named:
        raise ConfigError(
            f"parameter 'engine' is {config.engine!r}; {path.name} is run by {names} on {kind}"
        )
    known = dict.fromkeys(precision for row in named or rows for precision in row.precisions)
    if config.precision not in known:
        raise ConfigError(
            f"parameter 'precision' is {config.precision!r}; {path.name} is run in "
            f"{', '.join(known)} by {names} on {kind}"
        )
