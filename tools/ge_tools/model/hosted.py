"""What the host would refuse of its own ensembles, as far as configurations tell before a load.

Source: triton-inference-server/core r24.10 src/ensemble_utils.cc, `ValidateEnsembleConfig` and what
it calls. It compares the steps as they are once loaded, with what their files or their own code
have added: of what no configuration has nothing is said here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ge_backend.errors import ConfigError
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.config.model_folder import (
    BACKEND,
    is_ensemble,
    read_document,
    served_versions,
)
from ge_backend.serving.ensemble.dag import Dag, Step, read_dag
from ge_backend.serving.ensemble.members import check_members

__all__ = ["check_hosted"]

# What the host compares. Parameters are left out: those of other backends mean nothing here.
COMPARED = ("name", "max_batch_size", "input", "output")


def check_hosted(folder: Path) -> None:
    """See that the host can run the ensemble of this folder with the models beside it.

    Raises:
        ConfigError: it cannot; a step, a tensor or a size is named.
        DeviceUnavailable: the library that reads config.pbtxt is missing.
    """
    document = read_document(folder)
    dag = read_dag(document)
    _check_used(dag)
    own = _tensors(folder, document)
    check_members(dag, own, [_step(folder.parent, own, step) for step in dag.steps])


def _check_used(dag: Dag) -> None:
    taken = {tensor for step in dag.steps for tensor in step.inputs.values()} | {*dag.outputs}
    for tensor in (*dag.inputs, *(t for step in dag.steps for t in step.outputs.values())):
        if tensor not in taken:
            raise ConfigError(
                f"ensemble {dag.name!r}: nobody takes tensor {tensor!r}, which Triton refuses; "
                "leave it out, or make it an output of the ensemble"
            )


def _step(repository: Path, own: ModelConfig, step: Step) -> ModelConfig | None:
    """Return the tensors of a step's model; None where its configuration need not have them all."""
    folder = repository / step.model
    where = f"ensemble {own.name!r}: step {step.model!r}"
    if not folder.is_dir():
        raise ConfigError(f"{where} is not in {repository}")
    document = read_document(folder)
    if step.version >= 0 and str(step.version) not in served_versions(folder, document):
        raise ConfigError(
            f"{where} has no version {step.version} in {folder}, or its version_policy leaves "
            "that out"
        )
    config = _tensors(folder, document)
    if 0 < config.max_batch_size < own.max_batch_size:
        raise ConfigError(
            f"{where} has max_batch_size {config.max_batch_size}, less than the ensemble's "
            f"{own.max_batch_size}; lower that"
        )
    declared = {tensor.name for tensor in (*config.inputs, *config.outputs)}
    # A Python model's own code may declare more, and so may other backends.
    whole = document.get("backend") == BACKEND or is_ensemble(document)
    known = whole or declared.issuperset({*step.inputs, *step.outputs})
    return config if config.inputs and config.outputs and known else None


def _tensors(folder: Path, document: Mapping[str, Any]) -> ModelConfig:
    compared = {field: document[field] for field in COMPARED if field in document}
    return ModelConfig.read(compared, directory=folder, version="", environment={})
