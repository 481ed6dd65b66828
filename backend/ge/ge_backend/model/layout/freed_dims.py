"""Fixed dimensions of a model file that padding can free.

A file that runs in a list of shapes has fixed dimensions where these never differ. One compiled for
8 rows still serves up to 8, if the model has a batch dimension, and one compiled for 128 tokens
serves fewer, if config.pbtxt declares that dimension as -1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ge_backend.model.config.model import ModelConfig, TensorConfig
from ge_backend.model.layout.validate import generated_by, tensor_named
from ge_backend.tensors import Shape, Signature, TensorSpec

__all__ = ["free_fixed_dims"]

BATCH = "batch"


def free_fixed_dims(
    config: ModelConfig, signature: Signature, fixed_shapes: Sequence[Mapping[str, Shape]]
) -> Signature:
    """Return the signature with those dimensions free that the configuration wants to pad.

    They are padded to the file's size. Freed dimensions of one size are one axis, unless the file
    or `axes.<tensor>` says otherwise. A mask or the like that the backend makes follows them, and
    so does an output's dimension that is declared -1. Without fixed shapes nothing is freed: the
    file leaves open what it runs in.
    """
    if not fixed_shapes:
        return signature
    skip = 1 if config.max_batch_size else 0
    rows = _rows(signature) if skip else 0
    names = _names(config, signature, skip)
    limits = {name: size for size, name in names.items()} | ({BATCH: rows} if rows else {})

    def opened(spec: TensorSpec, declared: TensorConfig | None, *, follows: bool) -> TensorSpec:
        dims, axes = list(spec.dims), list(spec.axes)
        if rows and dims[:1] == [rows]:
            dims[0], axes[0] = -1, axes[0] or BATCH
        wanted = declared.graph_dims if declared is not None else (-1,) * len(dims[skip:])
        if (declared is not None or follows) and len(wanted) == len(dims[skip:]):
            for at, dim in enumerate(wanted, start=skip):
                if dim < 0 and dims[at] in names:
                    axes[at] = axes[at] or names[dims[at]]
                    dims[at] = -1
        return replace(spec, dims=tuple(dims), axes=tuple(axes))

    return replace(
        signature,
        inputs=tuple(
            opened(
                spec,
                tensor_named(config.inputs, spec.name),
                follows=bool(generated_by(config, spec)),
            )
            for spec in signature.inputs
        ),
        outputs=tuple(
            opened(spec, tensor_named(config.outputs, spec.name), follows=False)
            for spec in signature.outputs
        ),
        axis_limits={**limits, **signature.axis_limits},
    )


def _rows(signature: Signature) -> int:
    """Return the size that is every input's first; 0 if that differs, or is free already."""
    first = {spec.dims[:1] for spec in signature.inputs}
    return max(0, *first.pop()) if len(first) == 1 and first != {()} else 0


def _names(config: ModelConfig, signature: Signature, skip: int) -> dict[int, str]:
    """Return a name for each size of a fixed dimension that an input declares as -1."""
    names: dict[int, str] = {}
    for spec in signature.inputs:
        tensor = tensor_named(config.inputs, spec.name)
        for at, dim in enumerate(tensor.graph_dims if tensor is not None else (), start=skip):
            if dim < 0 and at < len(spec.dims) and spec.dims[at] >= 0:
                names.setdefault(spec.dims[at], spec.axes[at] or f"{spec.name}.{at}")
    return names
