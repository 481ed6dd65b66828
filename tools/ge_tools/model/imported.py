"""Model folders for an imported encoder: its graph, its tokenizer, and both as an ensemble."""

from __future__ import annotations

import json
from pathlib import Path

from ge_backend.engines.torch.encoder_export import Exported
from ge_backend.errors import ModelError
from ge_backend.model.files.encoder_folder import EncoderFolder

__all__ = [
    "LABELS",
    "encoder_config",
    "ensemble_config",
    "lower_cased",
    "normaliser_note",
    "tokenizer_config",
]

MAX_ROWS = 32
LABELS = "labels.txt"
IDENTITY = """\
# Scores are taken as they are, as the checkpoint's config.json says.
parameters { key: "score_activation" value: { string_value: "identity" } }
"""


def encoder_config(checkpoint: EncoderFolder, exported: Exported) -> str:
    """Return the config.pbtxt of the graph."""
    further = ",\n".join(map(_further, exported.inputs[1:]))
    return f"""\
backend: "ge"
max_batch_size: {MAX_ROWS}
input [
  {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }},
  # Made by the backend where a client leaves it out.
{further}
]
output [ {{ {_output(checkpoint, exported)} }} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
# The largest bucket: the most tokens that the checkpoint takes.
parameters {{ key: "max_length" value: {{ string_value: "{checkpoint.max_length}" }} }}
"""


def tokenizer_config(checkpoint: EncoderFolder) -> str:
    """Return the config.pbtxt of the tokenizer; its tensors are filled in from the file."""
    switch = 'parameters { key: "tokenizer.pairs" value: { string_value: "true" } }\n'
    pairs = switch if checkpoint.pairs else ""
    return f"""\
backend: "ge"
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
# Wherever the encoder runs (GE_DEVICE): texts are cut into tokens on a CPU.
parameters {{ key: "device" value: {{ string_value: "cpu" }} }}
# Longer texts are cut.
parameters {{ key: "tokenizer.max_length" value: {{ string_value: "{checkpoint.max_length}" }} }}
{pairs}"""


def normaliser_note(own: Path, made: Path) -> str:
    """Return what to say where transformers normalises texts otherwise than a tokenizer.json; "".

    Its class for the tokenizer may build that part anew: transformers 5 makes BERT's put texts in
    lower case unless `do_lower_case` says no, whatever the file has.

    Args:
        own: the checkpoint's file, which may be missing.
        made: what transformers has made of the checkpoint.
    """
    try:
        found = [json.loads(file.read_text(encoding="utf-8"))["normalizer"] for file in (own, made)]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if found[0] == found[1]:
        return ""
    before, after = (json.dumps(each) for each in found)
    return (
        f"the tokenizer normalises texts as transformers does, {after}, and not as {own.name}, "
        f"{before}; do_lower_case and strip_accents in tokenizer_config.json say which"
    )


def lower_cased(tokenizer: str) -> str:
    """Return a `tokenizer.json` that puts a text in lower case first, special tokens excepted.

    Source: sentence-transformers 5.4 to 6.2, base/modules/transformer.py, `do_lower_case`.

    Raises:
        ModelError: it is none.
    """
    try:
        said = json.loads(tokenizer)
    except ValueError as error:
        raise ModelError(f"the folder's tokenizer.json cannot be read: {error}") from error
    own = said.get("normalizer") or {"type": "Sequence", "normalizers": []}
    steps = own["normalizers"] if own["type"] == "Sequence" else [own]
    if not any(step["type"] == "Lowercase" for step in steps):
        steps = [{"type": "Lowercase"}, *steps]
    said["normalizer"] = {"type": "Sequence", "normalizers": steps}
    return json.dumps(said, ensure_ascii=False)


def ensemble_config(checkpoint: EncoderFolder, exported: Exported, name: str) -> str:
    """Return the config.pbtxt that runs the tokenizer and the graph one after the other."""
    output = checkpoint.output
    texts = ("text", "text_pair")[: 1 + checkpoint.pairs]
    taken = ", ".join(f'{{ name: "{text}" data_type: TYPE_STRING dims: [ 1 ] }}' for text in texts)
    split = "\n".join(f'      input_map {{ key: "{text}" value: "{text}" }}' for text in texts)
    ids, *further = exported.inputs
    ranks = checkpoint.pairs and exported.width == 1
    activation = IDENTITY if ranks and not checkpoint.logits else ""
    made = "\n".join(f'      output_map {{ key: "{name}" value: "{name}" }}' for name in further)
    fed = "\n".join(f'      input_map {{ key: "{name}" value: "{name}" }}' for name in further)
    return f"""\
platform: "ensemble"
max_batch_size: {MAX_ROWS}
input [ {taken} ]
output [ {{ {_output(checkpoint, exported)} }} ]
ensemble_scheduling {{
  step [
    {{
      model_name: "{name}_tokenizer" model_version: -1
{split}
      output_map {{ key: "{ids}" value: "{ids}" }}
      # Texts of one request are padded to its longest; the mask tells where each one ends.
{made}
    }},
    {{
      model_name: "{name}_encoder" model_version: -1
      input_map {{ key: "{ids}" value: "{ids}" }}
{fed}
      output_map {{ key: "{output}" value: "{output}" }}
    }}
  ]
}}
{activation}"""


def _further(name: str) -> str:
    return f"""\
  {{
    name: "{name}" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true
    optional: true
  }}"""


def _output(checkpoint: EncoderFolder, exported: Exported) -> str:
    dims = f"-1, {exported.width}" if checkpoint.per_token else f"{exported.width}"
    labels = f' label_filename: "{LABELS}"' if checkpoint.labels else ""
    return f'name: "{checkpoint.output}" data_type: TYPE_FP32 dims: [ {dims} ]{labels}'
