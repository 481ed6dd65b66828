"""The demo's ensemble: the tokenizer before the encoder, so that clients send texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpcclient

from demo.encoder import MAX_LENGTH, OUTPUT
from ge_backend.tensors import Array

__all__ = ["ENSEMBLE", "embed", "write_ensemble"]

TOKENIZER, ENSEMBLE = "minilm_tokenizer", "minilm_text"
# Rows of one request; no more than the encoder takes.
BATCH = 32

_TOKENIZER_CONFIG = f"""\
# Inputs and outputs are filled in from tokenizer.json.
backend: "ge"
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
# The file says 128, which is less than the encoder can take.
parameters {{ key: "tokenizer.max_length" value: {{ string_value: "{MAX_LENGTH}" }} }}
"""
_ENSEMBLE_CONFIG = """\
platform: "ensemble"
max_batch_size: 32
input [ {{ name: "text" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "{output}" data_type: TYPE_FP32 dims: [ 384 ] }} ]
ensemble_scheduling {{
  step [
    {{
      model_name: "{tokenizer}" model_version: -1
      input_map {{ key: "text" value: "text" }}
      output_map {{ key: "input_ids" value: "ids" }}
      # Texts of one request are padded to its longest; the mask tells where each one ends.
      output_map {{ key: "attention_mask" value: "mask" }}
    }},
    {{
      model_name: "{encoder}" model_version: -1
      input_map {{ key: "input_ids" value: "ids" }}
      input_map {{ key: "attention_mask" value: "mask" }}
      output_map {{ key: "{output}" value: "{output}" }}
    }}
  ]
}}
"""


def write_ensemble(root: Path, file: Path, encoder: str) -> None:
    """Write the tokenizer and the ensemble beside the encoder of that name.

    Args:
        root: the model repository.
        file: the encoder's `tokenizer.json`, which is linked.
        encoder: a model that takes `input_ids` and `attention_mask`.
    """
    (root / TOKENIZER / "1").mkdir(parents=True)
    (root / TOKENIZER / "1" / "tokenizer.json").symlink_to(file.resolve())
    (root / TOKENIZER / "config.pbtxt").write_text(_TOKENIZER_CONFIG)
    (root / ENSEMBLE / "1").mkdir(parents=True)
    config = _ENSEMBLE_CONFIG.format(output=OUTPUT, tokenizer=TOKENIZER, encoder=encoder)
    (root / ENSEMBLE / "config.pbtxt").write_text(config)


def embed(url: str, texts: Sequence[str]) -> Array:
    """Return FP32 [texts, 384] from the ensemble, asked for many texts at once.

    Raises:
        tritonclient.utils.InferenceServerException: the server refused a request.
    """
    found: list[Array] = []
    with grpcclient.InferenceServerClient(url) as client:
        for first in range(0, len(texts), BATCH):
            column = np.array([[text.encode()] for text in texts[first : first + BATCH]], object)
            given = grpcclient.InferInput("text", list(column.shape), "BYTES")
            given.set_data_from_numpy(column)
            found.append(client.infer(ENSEMBLE, [given]).as_numpy(OUTPUT))
    return np.concatenate(found)
