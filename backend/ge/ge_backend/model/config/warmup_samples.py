"""Inputs that `model_warmup` gives values of: what tests of a model may use, too.

Source: triton-inference-server/common@r25.09 protobuf/model_config.proto, ModelWarmup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ge_backend.model.config.inside import inside
from ge_backend.tensors import DataType, Shape, data_type

__all__ = ["WarmupSample", "WarmupTensor", "warmup_samples"]

FOLDER = "warmup"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupTensor:
    """One input of a warm-up request.

    Attributes:
        dims: of one row.
        file: holds its elements row by row; None for zeros.
    """

    dtype: DataType
    dims: Shape
    file: Path | None


WarmupSample: TypeAlias = Mapping[str, WarmupTensor]


def warmup_samples(config: Mapping[str, Any], directory: Path) -> tuple[WarmupSample, ...]:
    """Return the inputs of those warm-up requests that have a file for one, by input.

    What is random is left out.

    Args:
        config: as the host gives it.
        directory: the version folder.

    Raises:
        ConfigError: a file is outside the model's folder, or a type is unknown.
    """
    found = []
    for block in config.get("model_warmup", []):
        sample = {
            str(name): _tensor(tensor, directory)
            for name, tensor in dict(block.get("inputs", {})).items()
            if not tensor.get("random_data")
        }
        if any(tensor.file is not None for tensor in sample.values()):
            found.append(sample)
    return tuple(found)


def _tensor(block: Mapping[str, Any], directory: Path) -> WarmupTensor:
    name = str(block.get("input_data_file", ""))
    folder = directory.parent / FOLDER
    return WarmupTensor(
        dtype=data_type(str(block.get("data_type", ""))),
        dims=tuple(int(size) for size in block.get("dims", [])),
        file=inside(folder, name, "input_data_file of model_warmup") if name else None,
    )
