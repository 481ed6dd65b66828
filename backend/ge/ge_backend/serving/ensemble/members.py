"""The models of an ensemble, read from the model repository that they lie in beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ge_backend.errors import ConfigError
from ge_backend.kinds import FUSED, TEXT, kind_of
from ge_backend.model.config.model import ModelConfig, TensorConfig
from ge_backend.model.config.model_folder import (
    ModelFolder,
    is_ensemble,
    read_document,
    read_folder,
    served_versions,
)
from ge_backend.serving.ensemble.dag import Dag, Port, check_ports, read_dag

__all__ = ["Ensemble", "check_members", "read_ensemble"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """An ensemble of a repository.

    Attributes:
        document: the ensemble's configuration, by the fields of the host's JSON.
        folders: of each step's model, in the order of the steps; of the version that it names.
    """

    dag: Dag
    document: Mapping[str, object]
    folders: tuple[ModelFolder, ...]

    def leading_to(self, outputs: Sequence[str]) -> Ensemble:
        """Return it with these outputs alone, and the steps that run for who gets no others."""
        kept = sorted(self.dag.needed(outputs))
        steps = tuple(self.dag.steps[place] for place in kept)
        dag = replace(self.dag, steps=steps, outputs=tuple(outputs))
        return replace(self, dag=dag, folders=tuple(self.folders[place] for place in kept))


def read_ensemble(
    repository: Path, name: str, read: Callable[[Path], Mapping[str, Any]] = read_document
) -> Ensemble:
    """Return the ensemble `name` of a model repository.

    Args:
        repository: the folder of the models' folders.
        name: the ensemble's.
        read: gives the configuration of a model's folder, by the fields of the host's JSON.

    Raises:
        ConfigError: it, or a model of a step, is not there, is not ours, or cannot be a step.
        DeviceUnavailable: the library that reads config.pbtxt is missing.
    """
    if not (repository / name).is_dir():
        raise ConfigError(
            f"parameter 'fuse' names {name!r}, and there is no such model in {repository}"
        )
    document = read(repository / name)
    dag = read_dag(document)
    folders = tuple(_folder(repository, name, step.model, step.version, read) for step in dag.steps)
    return Ensemble(dag=dag, document=document, folders=folders)


def check_members(dag: Dag, own: ModelConfig, steps: Sequence[ModelConfig | None]) -> None:
    """See that both ends of every tensor agree.

    Args:
        dag: the ensemble.
        own: the ensemble's configuration: its inputs and outputs are ends as well.
        steps: the completed configurations of the steps, in their order; of None nothing is known.

    Raises:
        ConfigError: a name, type or size does not fit; both ends are named.
    """
    writers: dict[str, Port | None] = {
        tensor.name: _own("the ensemble's input", tensor, own) for tensor in own.inputs
    }
    readers: list[tuple[str, Port]] = []
    for step, config in zip(dag.steps, steps, strict=True):
        owner = f"step {step.model!r}"
        if config is None:
            writers |= dict.fromkeys(step.outputs.values())
            continue
        for name, tensor in step.inputs.items():
            readers.append((tensor, _declared(owner, "input", name, config)))
        for name, tensor in step.outputs.items():
            writers[tensor] = _declared(owner, "output", name, config)
        _check_complete(owner, step.inputs, config)
    readers += [(tensor.name, _own("the ensemble's output", tensor, own)) for tensor in own.outputs]
    for tensor, reader in readers:
        if tensor not in writers:
            raise ConfigError(
                f"{reader.describe()} takes {tensor!r}, which no step of ensemble {dag.name!r} "
                "writes and no input of this model is; declare the ensemble's inputs and outputs"
            )
    check_ports((writer, reader) for tensor, reader in readers if (writer := writers[tensor]))


def _folder(
    repository: Path,
    ensemble: str,
    model: str,
    version: int,
    read: Callable[[Path], Mapping[str, Any]],
) -> ModelFolder:
    path = repository / model
    if not path.is_dir():
        raise ConfigError(f"ensemble {ensemble!r}: step {model!r} is not in {repository}")
    try:
        document = read(path)
        if is_ensemble(document):
            raise ConfigError(
                "it is an ensemble itself; put its own steps in its place, or leave this ensemble "
                "to the host"
            )
        folder = read_folder(path, lambda _: document)
    except ConfigError as error:
        raise ConfigError(f"ensemble {ensemble!r}, step {model!r}: {error}") from error
    if "sequence_batching" in folder.document:
        raise ConfigError(
            f"ensemble {ensemble!r}: step {model!r} has sequences, whose requests only the host "
            "can schedule; leave it to the host's ensemble"
        )
    if kind_of(folder) is FUSED:
        raise ConfigError(
            f"ensemble {ensemble!r}: step {model!r} is itself a fused model, of {folder.fuse!r}; "
            "put the steps of that in its place, or leave this ensemble to the host"
        )
    served = served_versions(path, document)
    if version >= 0 and str(version) not in served:
        raise ConfigError(
            f"ensemble {ensemble!r}: step {model!r} has no version {version} in {path}, or its "
            f"version_policy leaves that out; it has {', '.join(served)}"
        )
    folder = folder if version < 0 else replace(folder, version=str(version))
    if kind_of(folder) is TEXT:
        raise ConfigError(
            f"ensemble {ensemble!r}: step {model!r} writes text, in many runs for each request; "
            "leave this ensemble to the host"
        )
    return folder


def _declared(owner: str, what: str, name: str, config: ModelConfig) -> Port:
    tensors = config.inputs if what == "input" else config.outputs
    for tensor in tensors:
        if tensor.name == name:
            return _port(owner, tensor, config)
    known = ", ".join(tensor.name for tensor in tensors)
    raise ConfigError(f"{owner} has no {what} {name!r}; it has {known}")


def _check_complete(owner: str, given: Mapping[str, str], config: ModelConfig) -> None:
    for tensor in config.inputs:
        if tensor.name not in given and not tensor.optional:
            raise ConfigError(
                f"{owner} needs its input {tensor.name!r}, which the ensemble does not give it; "
                "add it to input_map"
            )


def _own(owner: str, tensor: TensorConfig, own: ModelConfig) -> Port:
    """Return an end of the ensemble itself, whose reshape the host does before and after us."""
    return _port(owner, replace(tensor, dims=tensor.graph_dims), own)


def _port(owner: str, tensor: TensorConfig, config: ModelConfig) -> Port:
    batched = config.max_batch_size > 0
    return Port(
        owner=owner, name=tensor.name, dtype=tensor.dtype, dims=tensor.dims, batched=batched
    )
