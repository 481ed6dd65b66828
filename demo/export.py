"""Exports the encoder, pooling and normalisation included, to ONNX and with torch.export.

Imports torch and transformers; `demo.encoder` does so only when its cache is empty.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import onnxruntime
import torch
import transformers

__all__ = ["SentenceEncoder", "differences", "load", "to_onnx", "to_program"]

# Both exports stay valid for every size in these ranges; torch would bake in sizes it is not told.
_BATCH = torch.export.Dim("batch", min=1, max=256)
_SEQUENCE = torch.export.Dim("sequence", min=1, max=512)
_SHAPES = ({0: _BATCH, 1: _SEQUENCE}, {0: _BATCH, 1: _SEQUENCE})
# Checked after export: the smallest, the largest, and what lies between. (rows, length)
_CHECKED = ((1, 1), (1, 2), (2, 1), (3, 7), (32, 16), (8, 64), (1, 256), (2, 512))
_TOLERANCE = 1e-5


class SentenceEncoder(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """BERT, then the mean over real tokens, then unit length."""

    def __init__(self, bert: transformers.BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return FP32 [batch, 384] for two INT64 [batch, sequence]."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, p=2.0, dim=1)


def load(directory: Path) -> SentenceEncoder:
    """Return the encoder of a sentence-transformers folder, in evaluation mode."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    bert = transformers.BertModel.from_pretrained(directory, add_pooling_layer=False)
    module = SentenceEncoder(bert)
    module.eval()
    return module


def to_onnx(module: SentenceEncoder, path: Path, inputs: Sequence[str], output: str) -> None:
    """Write one ONNX file with named, dynamic axes, in the form that `ge-backend import` writes."""
    module.bert.set_attn_implementation("eager")  # fewer nodes than of the fused one
    with _quiet():
        torch.onnx.export(
            module,
            _example(2, 16),
            str(path),
            input_names=list(inputs),
            output_names=[output],
            dynamic_shapes=_SHAPES,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def to_program(module: SentenceEncoder, path: Path, inputs: Sequence[str], output: str) -> None:
    """Write one `.pt2` file; `ge_names.json` inside it has the names torch.export drops."""
    module.bert.set_attn_implementation("sdpa")
    with _quiet():
        program = torch.export.export(module, _example(2, 16), dynamic_shapes=_SHAPES)
    first = next(
        node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs
    )
    batch, sequence = map(str, first.meta["val"].shape)
    names = {
        "inputs": list(inputs),
        "outputs": [output],
        "axes": {batch: "batch", sequence: "sequence"},
    }
    torch.export.save(program, str(path), extra_files={"ge_names.json": json.dumps(names)})


def differences(module: SentenceEncoder, onnx: Path, program: Path) -> dict[str, float]:
    """Return the largest absolute difference of each file from `module` over several shapes.

    Raises:
        ValueError: one is too large for the file to be of use.
    """
    session = onnxruntime.InferenceSession(str(onnx), providers=["CPUExecutionProvider"])
    exported = torch.export.load(str(program)).module()
    found = {"ONNX": 0.0, "torch.export": 0.0}
    for rows, length in _CHECKED:
        ids, mask = _example(rows, length)
        feed = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
        with torch.inference_mode():
            expected = module(ids, mask)
            from_program = exported(ids, mask)
        from_onnx = torch.from_numpy(session.run(None, feed)[0])
        for name, got in (("ONNX", from_onnx), ("torch.export", from_program)):
            found[name] = max(found[name], float((got - expected).abs().max()))
    if max(found.values()) > _TOLERANCE:
        raise ValueError(f"exports differ from the transformers model: {found}")
    return found


def _example(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and a mask in which every row but the first is shorter than `length`."""
    generator = torch.Generator().manual_seed(rows * 1000 + length)
    ids = torch.randint(1000, 20000, (rows, length), generator=generator)
    kept = (length - 3 * torch.arange(rows)).clamp(min=1)
    mask = (torch.arange(length) < kept.unsqueeze(1)).to(torch.int64)
    return ids, mask


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what the exporter tells its own developers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
