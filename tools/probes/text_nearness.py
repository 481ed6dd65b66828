"""How far a checkpoint's scores are from those in FP32, by what OpenVINO computes them in.

`python -m tools.probes.text_nearness [FOLDER]` prints a table of docs/precision.md; the text is the
one that a model in eight bits reads when it is loaded, the model SmolLM2-135M where none is given.
"""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from benchmarks.harness.report import ROOT
from demo.chat_model import prepare
from rich.console import Console

from ge_backend.device.machine.cores import usable_cores
from ge_backend.model.files.checkpoint import Checkpoint, read_checkpoint
from ge_backend.tensors import Array
from ge_text.openvino.nearness import divergence, fixed_ids, log_probabilities
from ge_text.openvino.open import load_openvino

__all__ = ["lines", "main"]

CACHE = ROOT / ".cache" / "chat_model"
WAYS = {"fp32": ("FP32", False), "bf16": ("BF16", False), "int8": ("BF16", True)}
HEAD = (
    "| computed in | divergence from FP32 | from BF16 | perplexity of the text |",
    "| --- | ---: | ---: | ---: |",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.probes.text_nearness")
    parser.add_argument("folder", type=Path, nargs="?")
    folder = parser.parse_args(arguments).folder or prepare(CACHE, Console(stderr=True))
    checkpoint = read_checkpoint(folder)
    ids = fixed_ids(checkpoint)
    print(f"{len(ids)} tokens, weights stored in {checkpoint.dtype}")
    print("\n".join(lines(ids, {way: _scores(checkpoint, way, ids) for way in WAYS})))


def lines(ids: Array, scores: Mapping[str, torch.Tensor]) -> list[str]:
    """Return a Markdown table of log-probabilities FP32 [T, vocabulary], in `WAYS`."""
    following = torch.from_numpy(ids[1:])[:, None]
    cells = [
        (
            f"`{way}`",
            f"{divergence(scores['fp32'], found):.4f}",
            f"{divergence(scores['bf16'], found):.4f}",
            f"{math.exp(-float(found[:-1].gather(1, following).mean())):.2f}",
        )
        for way, found in scores.items()
    ]
    return [*HEAD, *(f"| {' | '.join(row)} |" for row in cells)]


def _scores(checkpoint: Checkpoint, way: str, ids: Array) -> torch.Tensor:
    dtype, compressed = WAYS[way]
    decoder = load_openvino(checkpoint, dtype=dtype, threads=usable_cores(), compressed=compressed)
    with contextlib.closing(decoder):
        return log_probabilities(decoder, ids)


if __name__ == "__main__":
    main()
