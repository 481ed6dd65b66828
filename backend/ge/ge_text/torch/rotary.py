"""Rotary position embeddings of the Llama family: frequencies by settings, and the rotation.

Source: Su et al., "RoFormer", arXiv 2104.09864; the scaled forms as transformers names them in
modeling_rope_utils.py (`linear`, `llama3`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["DEFAULT_THETA", "ROTARY_KINDS", "Rotation", "frequencies"]

# Each kind, and the settings that it needs.
ROTARY_KINDS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
}
DEFAULT_THETA = 10_000.0


def frequencies(settings: Mapping[str, Any], head_dim: int) -> torch.Tensor:
    """Return float32 [head_dim / 2], radians per position, for `Checkpoint.rotary`."""
    theta = float(settings.get("rope_theta", DEFAULT_THETA))
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / theta**exponents
    kind = settings["rope_type"]
    if kind == "linear":
        return plain / float(settings["factor"])
    return _llama3(settings, plain) if kind == "llama3" else plain


def _llama3(settings: Mapping[str, Any], plain: torch.Tensor) -> torch.Tensor:
    """Slow frequencies are divided by the factor, fast ones kept, those between blended."""
    factor = float(settings["factor"])
    low, high = float(settings["low_freq_factor"]), float(settings["high_freq_factor"])
    original = float(settings["original_max_position_embeddings"])
    wavelengths = 2 * math.pi / plain
    blend = ((original / wavelengths - low) / (high - low)).clamp(0, 1)
    blended = (1 - blend) * plain / factor + blend * plain
    slow = wavelengths > original / low
    fast = wavelengths < original / high
    return torch.where(slow, plain / factor, torch.where(fast, plain, blended))


class Rotation:
    """The rotation of one step's tokens; the two halves of a head are the two coordinates."""

    def __init__(
        self, per_position: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype
    ) -> None:
        angles = positions.unsqueeze(-1) * per_position
        cos, sin = angles.cos(), angles.sin()
        self._cos = torch.cat((cos, cos), -1).unsqueeze(1).to(dtype)
        self._sin = torch.cat((-sin, sin), -1).unsqueeze(1).to(dtype)
        self._half = per_position.shape[0]

    def __call__(self, heads: torch.Tensor) -> torch.Tensor:
        """Return [T, heads, D] rotated by their tokens' positions."""
        swapped = torch.cat((heads[..., self._half :], heads[..., : self._half]), -1)
        return torch.addcmul(heads * self._cos, swapped, self._sin)
