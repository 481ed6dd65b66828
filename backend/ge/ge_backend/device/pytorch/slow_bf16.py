"""BF16 in torch on a processor that has no arithmetic for it: right, and several times slower."""

from __future__ import annotations

import logging

import torch

__all__ = ["tell_slow_bf16"]

log = logging.getLogger(__name__)


def tell_slow_bf16(path: str, dtype: torch.dtype | None) -> None:
    """Log a warning where torch is to compute a model in BF16 on a CPU that oneDNN has none for.

    Args:
        path: the model's, for the line.
        dtype: what it is computed in; None: as its file has it.
    """
    if dtype == torch.bfloat16 and not _has_bf16():
        log.warning(
            "%s: torch computes BF16 slowly on this processor, which has no arithmetic for it; set "
            "the parameter 'precision' to 'fp32' (for a program: 'origin') if there is room for "
            "weights of twice the size",
            path,
        )


def _has_bf16() -> bool:
    """Return what oneDNN says, which a torch may be built without; there is no public name."""
    available: bool = torch.backends.mkldnn.is_available()
    return available and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
