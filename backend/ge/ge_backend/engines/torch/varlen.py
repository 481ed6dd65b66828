"""Attention of rows end to end by a kernel that is told where they end: flash attention on a GPU.

A mask lets every token be compared with every other one of a run, and most of that thrown away;
this compares those of one row. It computes in 16 bits.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ge_backend.device.failures import reason
from ge_backend.device.imports import importing
from ge_backend.engines.torch.masked_layers import RowAttention
from ge_backend.engines.torch.vendor import Vendor

__all__ = ["find_varlen", "varlen"]

log = logging.getLogger(__name__)

Kernel: TypeAlias = Callable[..., Any]  # torch's `varlen_attn`

TRIED = 8  # tokens


def find_varlen(dtype: torch.dtype, head: int, vendor: Vendor) -> Kernel | None:
    """Return the kernel, where it takes heads of this size (0: unknown), in this type there.

    It is tried, in the current stream: that takes a GPU from Ampere on, a build of torch with the
    kernels, and heads that are not too wide for them.

    Raises:
        RuntimeError: the device is broken, or has no memory left.
    """
    kernel, device = _kernel(), vendor.device
    on_gpu = device.startswith("cuda")
    if kernel is None or not head or not on_gpu or dtype not in {torch.bfloat16, torch.float16}:
        return None
    try:
        heads = torch.zeros(TRIED, 1, head, dtype=dtype, device=device)
        ends = torch.tensor([0, TRIED], dtype=torch.int32, device=device)
        kernel(heads, heads, heads, ends, ends, TRIED, TRIED).cpu()
    except RuntimeError as error:
        if vendor.is_fault(error) or vendor.is_out_of_memory(error):
            raise
        log.info("masks keep rows apart, for lack of flash attention: %s", reason(error))
        return None
    return kernel


def varlen(kernel: Kernel, longest: int) -> Callable[[torch.Tensor, torch.Tensor], RowAttention]:
    """Return what keeps rows apart of which the longest has `longest` tokens.

    It takes where rows begin and end, INT64 `[S + 1]`, from 0 to R. Those that are not
    there are empty: the kernel has blocks for them, too, which end at once.
    """

    def attention(ends: torch.Tensor, positions: torch.Tensor) -> RowAttention:
        most = min(longest, len(positions))
        return _Varlen(kernel=kernel, ends=ends.to(torch.int32), longest=most)

    return attention


@dataclass(frozen=True, slots=True, kw_only=True)
class _Varlen:
    """See `RowAttention`; INT32 `[rows + 1]` ends on the device."""

    kernel: Kernel
    ends: torch.Tensor
    longest: int

    def attend(
        self, *heads: torch.Tensor, scale: float | None, window: int | None, causal: bool
    ) -> torch.Tensor:
        """See `RowAttention`."""
        near = -1 if window is None else window - 1
        found: torch.Tensor = self.kernel(
            *(item[0].transpose(0, 1) for item in heads),
            self.ends,
            self.ends,
            self.longest,
            self.longest,
            scale=scale,
            window_size=(near, 0 if causal else near),
        )
        return found.transpose(0, 1).unsqueeze(0)


def _kernel() -> Kernel | None:
    """Return torch's function, of a torch that has it with all that is used of it: 2.11 or newer.

    Source: torch/nn/attention/varlen.py of the wheels 2.11.0 and 2.13.0.
    """
    try:
        with importing():
            from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    kernel: Kernel = varlen_attn
    known = inspect.signature(kernel).parameters
    return kernel if {"scale", "window_size"} <= set(known) else None
