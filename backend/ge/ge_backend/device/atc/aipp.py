"""Image preprocessing that is compiled into a model (static AIPP): what the model takes instead.

With `--insert_op_conf` an input of a photo model, FP32 `[batch, 3, height, width]`, becomes UINT8
as cameras and decoders give it: the device crops, converts and normalises. What it becomes follows
from the configuration file alone, which is read here, since buckets are planned before anything is
compiled.
Source: hicann/ge docs/zh: ATC manual, AIPP, config_file_template; aclmdlGetInputDimsV2, table 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ge_backend.device.atc.options import CompileRequest, further_options
from ge_backend.errors import ConfigError, ModelError, Unsupported
from ge_backend.tensors import Shape, Signature, TensorSpec, data_type

__all__ = ["Preprocessing", "preprocessing_of"]

# Per format: what the height is multiplied by, in halves, and the channels.
FORMATS: Mapping[str, tuple[int, int]] = {
    "YUV420SP_U8": (3, 1),
    "XRGB8888_U8": (2, 4),
    "RGB888_U8": (2, 3),
    "YUV400_U8": (2, 1),
    "ARGB8888_U8": (2, 4),
    "YUYV_U8": (2, 2),
    "YUV422SP_U8": (4, 1),
}
_BLOCK = re.compile(r"aipp_op\s*\{(?P<body>[^}]*)\}")
_FIELD = re.compile(r"(?P<key>\w+)\s*:\s*\"?(?P<value>[\w.+-]+)\"?")
_COMMENT = re.compile(r"#[^\n]*")
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
        Unsupported: the parameters are to come with each request (dynamic AIPP).
    """
    name = further_options(request.options).get("insert_op_conf", "")
    if not name:
        return Preprocessing(specs={}, originals={})
    path = request.model.parent / name
    blocks = _blocks(path)
    chosen = [_input(request, block, path) for block in blocks]
    return Preprocessing(
        specs={
            spec.name: _taken(spec, block, path) for spec, block in zip(chosen, blocks, strict=True)
        },
        originals={spec.name: spec for spec in chosen},
    )


def _blocks(path: Path) -> Sequence[Mapping[str, str]]:
    try:
        text = _COMMENT.sub("", path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"option 'atc.insert_op_conf': {error}") from error
    blocks = [
        {field["key"]: field["value"] for field in _FIELD.finditer(block["body"])}
        for block in _BLOCK.finditer(text)
    ]
    if not blocks:
        raise ConfigError(f"{path}: there is no aipp_op {{ … }} in it")
    for block in blocks:
        if block.get("aipp_mode") != "static":
            raise Unsupported(
                f"{path}: aipp_mode is {block.get('aipp_mode', 'not said')}; only static ones are "
                "compiled from ONNX, so say what is done to every image there"
            )
        if block.get("input_format") not in FORMATS:
            raise ConfigError(
                f"{path}: input_format is {block.get('input_format', 'not said')!r}; expected one "
                f"of {', '.join(FORMATS)}"
            )
    return blocks


def _input(request: CompileRequest, block: Mapping[str, str], path: Path) -> TensorSpec:
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


def _taken(spec: TensorSpec, block: Mapping[str, str], path: Path) -> TensorSpec:
    """Return what an input takes, in the layout of `aclmdlGetInputDimsV2`."""
    height = int(block.get("src_image_size_h", "0")) or spec.dims[2]
    width = int(block.get("src_image_size_w", "0")) or spec.dims[3]
    halves, channels = FORMATS[block["input_format"]]
    if height * halves % 2:
        raise ConfigError(f"{path}: a height of {height} cannot be {block['input_format']}: odd")
    return replace(
        spec,
        dtype=data_type("UINT8"),
        dims=(spec.dims[0], height * halves // 2, width, channels),
        axes=(spec.axes[0], "", "", ""),
    )
