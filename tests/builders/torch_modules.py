"""What graphs of `builders.graphs` compute, as modules of torch."""

from __future__ import annotations

import torch

from builders.graphs import TABLE

__all__ = ["MaskedMean"]


class MaskedMean(torch.nn.Module):
    """Mean of the table's rows where the mask is 1, as `masked_mean` computes it."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.from_numpy(TABLE.copy()))

    def forward(self, ids, attention_mask):
        mask = attention_mask.unsqueeze(-1).to(self.table.dtype)
        return (self.table[ids] * mask).sum(1) / mask.sum(1)
