"""BF16 and FP16 in torch on a CPU without arithmetic for them: right, and many times slower."""

from __future__ import annotations

import logging

import torch

__all__ = ["warn_of_slow_half"]

log = logging.getLogger(__name__)


def warn_of_slow_half(path: str, dtype: torch.dtype | None) -> None:
    """Log a warning where torch is to compute a model in half precision on a CPU that has none.

    Args:
        path: the model's, for the line.
        dtype: what it is computed in; None: as its file has it.
    """
    for half, name, here in (
        (torch.bfloat16, "BF16", _has_bf16),
        (torch.float16, "FP16", _has_fp16),
    ):
        if dtype == half and not here():
            log.warning(
                "%s: torch computes %s slowly on this processor, which has no arithmetic for it; "
                "set the parameter 'precision' to 'fp32' (for a program: 'origin') if there is "
                "room for weights of twice the size",
                path,
                name,
            )


def _has_bf16() -> bool:
    """Return whether oneDNN, which a torch may be built without, has it, and the processor, too.

    With AVX512 oneDNN always says so; without the instructions, as on an Ice Lake, a product of
    larger matrices takes three times as long as in FP32. There are no public names.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    instructions = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)  # since torch 2.6
    emulated = torch.cpu._is_avx512_supported() and not instructions()  # noqa: SLF001
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and not emulated  # noqa: SLF001


def _has_fp16() -> bool:
    """Likewise; without the instructions a product takes four to seventeen times as long."""
    known = torch.backends.mkldnn.is_available()
    return known and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())  # noqa: SLF001
