"""What OpenVINO computes in, by torch's types."""

from __future__ import annotations

import torch

from ge_backend.engines.ov.model import has_bf16

__all__ = ["PRECISIONS", "computed_in"]

# As OpenVINO calls them.
PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16"}


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """Return what this processor computes in where weights are FP32 or BF16.

    BF16 only where it has the instructions, as few older ones do. Where it has none, OpenVINO
    makes such weights wide, which is several times as fast as what torch does there.
    """
    return dtype if has_bf16() else torch.float32
