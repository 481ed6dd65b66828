"""The norm before each half of a layer: rows divided by their root mean square, times weights.

On a CPU torch computes it in some eight operators, of which none does much where rows are few. The
layer norm of a row beside its negative is the same (the mean is nought, the variance the mean
square) and is one operator. Measured with two threads and 576 elements in bfloat16: 6 instead of 14
microseconds for one row, 10 instead of 15 for 8, the same for 32, twice as long for 128.
"""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["RmsNorm"]

FEW_ROWS = 16


class RmsNorm:
    """One norm, with weights [D]; epsilon is added to the mean square."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self._weight = weight
        self._twice = torch.cat((weight, weight)) if weight.device.type == "cpu" else None
        self._epsilon = epsilon

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [T, D] for [T, D]."""
        width = len(self._weight)
        if self._twice is None or len(rows) > FEW_ROWS:
            return functional.rms_norm(rows, (width,), self._weight, self._epsilon)
        beside = torch.cat((rows, -rows), -1)
        return torch.layer_norm(beside, (2 * width,), self._twice, None, self._epsilon)[:, :width]
