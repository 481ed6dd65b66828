"""What OpenVINO computes in, by torch's types."""

from __future__ import annotations

import openvino
import torch

__all__ = ["PRECISIONS", "computes"]

# As OpenVINO calls them.
PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16"}


def computes(dtype: torch.dtype) -> bool:
    """Return whether this processor computes in a type; in BF16 few older ones do."""
    known: list[str] = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return dtype == torch.float32 or (dtype == torch.bfloat16 and "BF16" in known)
