"""Attention that brings queries to the blocks of a cache, where gathering keys costs more.

Each entry of the plan (see `block_plan`) is attended to by itself, in batched products over runs
of neighbouring blocks, in place; what the entries of a row found is then weighed together, as
attention over split keys is. A block that many rows share is read once for all of them.

Letters as in `attention`; E entries, S keys of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ge_text.torch.attention import Attend
from ge_text.torch.block_plan import BlockPlan, BlockRun

__all__ = ["BlockAttention"]


@dataclass(slots=True)
class BlockAttention:
    """The rows of one query length in one step; for a CPU, whose tensors are the plan's arrays.

    Attributes:
        plan: of the group's blocks.
        positions: int64 [B, Q].
    """

    plan: BlockPlan
    positions: torch.Tensor
    _masks: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def attend(
        self, how: Attend, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Return FP [B * Q, H * D] for queries [B * Q, H, D] and one layer's cache."""
        rows, queries = self.positions.shape
        heads, size = keys.shape[1:3]
        owner, count = torch.from_numpy(self.plan.owner), len(self.plan.owner)
        # [B * Q, K * G, D] -> [B, K, Q * G * D]
        asked = query.reshape(rows, queries, heads, -1).transpose(1, 2).reshape(rows, heads, -1)
        asked = (asked * how.scale).index_select(0, owner)
        each = [
            _product(run, _of(run, asked), keys[run.first : run.end].transpose(2, 3))
            for run in self.plan.runs
        ]
        scores = (each[0] if len(each) == 1 else torch.cat(each)).float()
        if how.softcap:
            scores = torch.tanh(scores.div_(how.softcap)).mul_(how.softcap)
        # Each entry's scores are those of K x Q x G queries with S keys.
        scores.view(count, heads, queries, -1, size).add_(self._mask(how.window, size))
        weights, totals = self._weights(scores.view(count, -1, size))
        weights = weights.to(values.dtype).view(count, heads, -1)
        found = torch.zeros(count + 1, weights[0].numel() // size, values.shape[-1])
        for run in self.plan.runs:
            part = _product(run, _of(run, weights), values[run.first : run.end])
            end = run.entry + len(part)
            found[run.entry : end] = part.view(len(part), -1, values.shape[-1])
        result = self._over_entries(found).sum(1) / totals.unsqueeze(-1)
        result = result.view(rows, heads, queries, -1).transpose(1, 2)
        return result.reshape(rows * queries, -1).to(query.dtype)

    def _weights(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return exp(score - the row's highest) [E, K * Q * G, S] and its sums over each row."""
        count = len(scores)
        highest = scores.new_full((count + 1, scores.shape[1]), -torch.inf)
        torch.amax(scores, -1, out=highest[:count])
        of_row = self._over_entries(highest).amax(1)
        owner = torch.from_numpy(self.plan.owner)
        weights = scores.sub_(of_row.index_select(0, owner).unsqueeze(-1)).exp_()
        sums = scores.new_zeros((count + 1, scores.shape[1]))
        torch.sum(weights, -1, out=sums[:count])
        return weights, self._over_entries(sums).sum(1)

    def _over_entries(self, found: torch.Tensor) -> torch.Tensor:
        """Return [B, N, ...] for [E + 1, ...]."""
        entries = torch.from_numpy(self.plan.entries)
        return found.index_select(0, entries.view(-1)).view(*entries.shape, *found.shape[1:])

    def _mask(self, window: int, size: int) -> torch.Tensor:
        """Return 0 where an entry's query sees a key, else -inf: [E, 1, Q, 1, S]."""
        if (window, size) not in self._masks:
            owner, first = torch.from_numpy(self.plan.owner), torch.from_numpy(self.plan.first)
            last = self.positions.index_select(0, owner).unsqueeze(-1)
            keys = (first.unsqueeze(1) + torch.arange(size)).unsqueeze(1)
            hidden = keys > last
            if window:
                hidden |= keys <= last - window
            mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
            self._masks[window, size] = mask.unsqueeze(1).unsqueeze(3)
        return self._masks[window, size]


def _of(run: BlockRun, entries: torch.Tensor) -> torch.Tensor:
    """Return a run's part of [E, K, X] as [blocks, K, readers * X]."""
    blocks = run.end - run.first
    part = entries[run.entry : run.entry + blocks * run.readers]
    if run.readers == 1:
        return part
    return part.view(blocks, run.readers, *part.shape[1:]).transpose(1, 2).flatten(2)


def _product(run: BlockRun, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return [entries, K, Y] for [blocks, K, readers * X] and a run's [blocks, K, X', Y']."""
    blocks, heads = right.shape[:2]
    rows = left.reshape(blocks * heads, -1, right.shape[2])
    found = torch.bmm(rows, right.flatten(0, 1)).view(blocks, heads, run.readers, -1)
    if run.readers == 1:
        return found.view(blocks, heads, -1)
    return found.transpose(1, 2).reshape(blocks * run.readers, heads, -1).contiguous()
