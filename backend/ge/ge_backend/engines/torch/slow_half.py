"""BF16 in torch on a processor that has no arithmetic for it: right, and several times slower."""

from __future__ import annotations

import logging

import torch

__all__ = ["warn_of_slow_bf16"]

log = logging.getLogger(__name__)


def warn_of_slow_bf16(path: str, dtype: torch.dtype | None) -> None:
    """Log a warning where torch is to compute a model in BF16 on a CPU that has none.

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
    """Return whether oneDNN, which a torch may be built without, has it, and the processor, too.

    With AVX512 oneDNN always says so; without the instructions, as on an Ice Lake, a product of
    larger matrices takes three times as long as in FP32. There are no public names.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    instructions = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)  # since torch 2.6
    emulated = torch.cpu._is_avx512_supported() and not instructions()  # noqa: SLF001
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and not emulated  # noqa: SLF001
