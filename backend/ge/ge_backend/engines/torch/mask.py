"""What torch's fused attention is given to tell which token sees which."""

from __future__ import annotations

import torch

__all__ = ["fused_mask_type", "mask_of"]


def fused_mask_type(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type of a mask for the fused kernel, which computes in `dtype`.

    On an NPU it takes BOOL: with any other mask single operators compute, in FP32.
    Source: Ascend/op-plugin, ScaledDotProductAttentionKernelNpuOpApi.cpp.
    """
    return torch.bool if device.type == "npu" else dtype


def mask_of(seen: torch.Tensor, dtype: torch.dtype, hidden: float = -torch.inf) -> torch.Tensor:
    """Return a mask of the type `fused_mask_type` tells, of the shape of `seen`.

    Args:
        seen: BOOL.
        dtype: BOOL gives `seen` itself, any other what is added to scores: 0 where it is true.
        hidden: what is added elsewhere.
    """
    if dtype == torch.bool:
        return seen
    return torch.where(seen, 0.0, hidden).to(dtype)
