"""Image preprocessing that is compiled into a model (static AIPP): what the model takes instead.

With `--insert_op_conf` an input of a photo model, FP32 `[batch, 3, height, width]`, becomes UINT8
as cameras and decoders give it: the device crops, converts and normalises. What it becomes follows
from the configuration file alone, which is read here, since buckets are planned before anything is
compiled.
Source: hicann/ge docs/zh: ATC manual, AIPP, config_file_template; aclmdlGetInputDimsV2, table 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ge_backend.engines.atc.options import CompileRequest, further_options
from ge_backend.errors import ModelError
from ge_backend.model.files.aipp_file import Block, image_dims, read_blocks
from ge_backend.tensors import Shape, Signature, TensorSpec, data_type

__all__ = ["Preprocessing", "preprocessing_of"]

IMAGE_RANK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """The inputs that take images as they come, by name.

    Attributes:
        specs: what they are.
        originals: what the model's own file says they are.
    """

    specs: Mapping[str, TensorSpec]
    originals: Mapping[str, TensorSpec]

    def signature(self, signature: Signature) -> Signature:
        """Return the signature of the compiled model."""
        inputs = tuple(self.specs.get(spec.name, spec) for spec in signature.inputs)
        return replace(signature, inputs=inputs)

    def shapes(self, bucket: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return a bucket in the shapes of the model's own file, as `--input_shape` wants them."""
        return {
            name: (shape[0], *self.originals[name].dims[1:]) if name in self.originals else shape
            for name, shape in bucket.items()
        }


def preprocessing_of(request: CompileRequest) -> Preprocessing:
    """Return what a request's options say about its images; nothing where they do not.

    Raises:
        ConfigError: the file is not there, or does not say what it must.
        ModelError: the model has no such input, or one whose size varies.
    """
    name = further_options(request.options).get("insert_op_conf", "")
    if not name:
        return Preprocessing(specs={}, originals={})
    path = request.model.parent / name
    blocks = read_blocks(path, "static", "atc.insert_op_conf")
    chosen = [_input(request, block, path) for block in blocks]
    return Preprocessing(
        specs={
            spec.name: _taken(spec, block, path) for spec, block in zip(chosen, blocks, strict=True)
        },
        originals={spec.name: spec for spec in chosen},
    )


def _input(request: CompileRequest, block: Block, path: Path) -> TensorSpec:
    rank = int(block.get("related_input_rank", "0"))
    if rank >= len(request.inputs):
        raise ModelError(
            f"{path}: related_input_rank is {rank}, and {request.model} has "
            f"{len(request.inputs)} inputs"
        )
    spec = request.inputs[rank]
    if len(spec.dims) != IMAGE_RANK or min(spec.dims[1:]) < 1:
        raise ModelError(
            f"{path} is for input {spec.name!r}, which is {spec.describe()}; expected "
            "[batch, channels, height, width], of which only the batch is free"
        )
    return spec


def _taken(spec: TensorSpec, block: Block, path: Path) -> TensorSpec:
    """Return what an input takes, in the layout of `aclmdlGetInputDimsV2`."""
    return replace(
        spec,
        dtype=data_type("UINT8"),
        dims=(spec.dims[0], *image_dims(block, spec.dims[2], spec.dims[3], str(path))),
        axes=(spec.axes[0], "", "", ""),
    )
