"""Writes the demo's model repository: one encoder, as an ONNX file and as its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.encoder import OUTPUT, Encoder

__all__ = ["ServedModel", "served_models", "write_repository"]

# The whole configuration of a model; what is not here comes from the model file.
_CONFIG = """\
backend: "ge"
# At most 32 rows in one call of the backend.
max_batch_size: 32
# Texts of different lengths may share a batch. The attention mask is optional: the backend makes
# it, so a client that has one text sends only its tokens.
input [
  {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }},
  {{
    name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true
    optional: true
  }}
]
output [ {{ name: "{output}" data_type: TYPE_FP32 dims: [ 384 ] }} ]
# Requests that wait while an instance is busy go together.
dynamic_batching {{ }}
# Two instances: one stages and splits while the other computes. The weights are loaded once.
instance_group [ {{ count: 2 kind: KIND_CPU }} ]
# The shapes that are measured, beside serving once the model is READY.
parameters {{ key: "buckets.rows" value: {{ string_value: "1,2,4,8,16" }} }}
parameters {{ key: "buckets.sequence" value: {{ string_value: "16,32,64,128,256" }} }}
# One measured run per bucket: a demo starts sooner, a service would keep the default.
# The arithmetic.
parameters {{ key: "precision" value: {{ string_value: "{precision}" }} }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model of the repository.

    Attributes:
        file: the encoder that it serves: a file, or a checkpoint's folder.
        tolerance: how far an embedding may be from the unpadded truth, per element. Embeddings
            have unit length and 384 elements, so a typical element is 0.05.
    """

    name: str
    title: str
    file: Path
    precision: str
    tolerance: float


def served_models(encoder: Encoder) -> tuple[ServedModel, ...]:
    """Return the models that the demo serves."""
    return (
        ServedModel(
            name="minilm_onnx",
            title="ONNX Runtime, float32",
            file=encoder.onnx,
            precision="origin",
            tolerance=1e-5,
        ),
        ServedModel(
            name="minilm_folder",
            title="checkpoint, no padding, bf16",
            file=encoder.checkpoint,
            precision="bf16",
            tolerance=1e-2,
        ),
    )


def write_repository(root: Path, models: Sequence[ServedModel]) -> None:
    """Write `root/<name>/config.pbtxt`, and link each folder as `1`, each file as `1/model.*`."""
    for model in models:
        version = root / model.name / "1"
        linked = version if model.file.is_dir() else version / f"model{model.file.suffix}"
        linked.parent.mkdir(parents=True)
        linked.symlink_to(model.file.resolve())
        config = _CONFIG.format(output=OUTPUT, precision=model.precision)
        (root / model.name / "config.pbtxt").write_text(config)
