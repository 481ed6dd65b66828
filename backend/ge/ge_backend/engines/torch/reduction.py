"""Rows end to end become one vector each on the device: hidden states need not cross the bus."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

__all__ = ["REDUCTIONS", "Reduction"]

# FP32 `[S, W]` of hidden states FP32 `[R, W]`, INT64 `[R]` whose they are, below 0 where no row's,
# and INT64 `[S + 1]` where rows begin and end. What is no row's may hold anything, NaN too. Of rows
# that are not there anything comes out.
Reduction: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _first(hidden: torch.Tensor, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    del rows
    return hidden.index_select(0, ends[:-1].clamp(max=len(hidden) - 1))


def _last(hidden: torch.Tensor, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    del rows
    return hidden.index_select(0, ends[1:] - 1)


def _mean(hidden: torch.Tensor, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """One product of matrices: sums by other operators are in no fixed order, or take all rows."""
    places = torch.arange(len(hidden), device=hidden.device)
    begins, lasts = ends[:-1, None], ends[1:, None]
    shares = ((begins <= places) & (places < lasts)).float() / (lasts - begins).clamp(min=1)
    # Nought times what is no number is none either: it would spoil all rows.
    odd = ~hidden.isfinite().all(1, keepdim=True)
    means: torch.Tensor = shares @ hidden.masked_fill(odd | (rows[:, None] < 0), 0.0)
    return means.masked_fill(shares @ odd.float() > 0, torch.nan)


# By what `PackedEncoder.reduction` says; any other is left to the host.
REDUCTIONS: dict[str, Reduction] = {"first": _first, "last": _last, "mean": _mean}
