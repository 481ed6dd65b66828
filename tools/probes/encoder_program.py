"""A transformer encoder with random weights of a fixed seed, as a `model.pt2`: nothing to download.

It computes what a small sentence encoder does: ids and mask in, one unit-length vector per row out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

__all__ = ["INPUTS", "OUTPUT", "Encoder", "Size", "export"]

INPUTS = ("input_ids", "attention_mask")
OUTPUT = "embedding"
ROWS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large an encoder is, by default as all-MiniLM-L6; `longest` is a row's most tokens."""

    layers: int = 6
    width: int = 384
    heads: int = 12
    vocabulary: int = 30_000
    longest: int = 256


class Encoder(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """INT64 `[batch, sequence]` ids and mask -> FP32 `[batch, width]`; padding changes nothing."""

    def __init__(self, size: Size, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.tokens = torch.nn.Embedding(size.vocabulary, size.width)
        self.places = torch.nn.Embedding(size.longest, size.width)
        self.layers = torch.nn.ModuleList(_Layer(size) for _ in range(size.layers))
        self.eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the mean over the real tokens, of length 1."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.tokens(input_ids) + self.places(places)
        allowed = attention_mask.bool()[:, None, None, :]
        for layer in self.layers:
            hidden = layer(hidden, allowed)
        weights = attention_mask.to(hidden.dtype)[:, :, None]
        mean = (hidden * weights).sum(1) / weights.sum(1)
        return functional.normalize(mean.to(torch.float32), dim=1)


class _Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.before, self.between = (torch.nn.LayerNorm(size.width) for _ in range(2))
        self.attend = torch.nn.Linear(size.width, 3 * size.width)
        self.mix = torch.nn.Linear(size.width, size.width)
        self.widen = torch.nn.Linear(size.width, 4 * size.width)
        self.narrow = torch.nn.Linear(4 * size.width, size.width)

    def forward(self, hidden: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        rows, length, width = hidden.shape
        split = self.attend(self.before(hidden)).view(rows, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        heads = functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        hidden = hidden + self.mix(heads.transpose(1, 2).reshape(rows, length, width))
        return hidden + self.narrow(functional.gelu(self.widen(self.between(hidden))))


def export(encoder: Encoder, size: Size, path: Path) -> None:
    """Write the encoder as a program of free batch and length, with the names of its axes."""
    ids = torch.ones(2, 8, dtype=torch.int64)
    free = {
        0: torch.export.Dim("batch", min=1, max=ROWS),
        1: torch.export.Dim("sequence", min=2, max=size.longest),
    }
    # Two tensors: one that is passed twice is one input to the exporter.
    program = torch.export.export(encoder, (ids, ids.clone()), dynamic_shapes=(free, free))
    first = next(node for node in program.graph.nodes if node.name == INPUTS[0])
    symbols = map(str, first.meta["val"].shape)
    names = {"outputs": [OUTPUT], "axes": dict(zip(symbols, ("batch", "sequence"), strict=True))}
    torch.export.save(program, str(path), extra_files={"ge_names.json": json.dumps(names)})
