"""Attention over a paged cache, in plain torch: gather the rows' blocks, then batched products.

Letters: T tokens of a step, B rows of a part, Q new tokens of each, N blocks of its longest row,
L keys, H heads of queries, K of keys, G = H / K, D elements of a head.

Few queries per row (decoding, verification) are two batched products over [B * K, Q * G, L]: the
heads that share keys are further queries of them, so that keys are read once and nothing is
repeated. Chunks of prompts go through the fused kernel. On accelerators each head has keys of its
own there: torch_npu before 2.9 has no groups in it with a mask, and CUDA's kernels that take a mask
have had them for a short time only; what computes instead is plain and holds all scores in FP32.
Source: Ascend/op-plugin, ScaledDotProductAttentionKernelNpuOpApi.cpp; pytorch #191085.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.nn import functional

from ge_backend.engines.torch.mask import fused_mask_type, mask_of

__all__ = ["FEW_QUERIES", "Attend", "RowAttention"]

# Up to this many queries a row, products; above, the fused kernel.
FEW_QUERIES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Attend:
    """How one layer attends.

    Attributes:
        scale: of the products of queries and keys.
        window: a token sees this many, itself included; 0 is all.
        softcap: scores are softcap * tanh(scores / softcap); 0 is as they are.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0


@dataclass(slots=True)
class RowAttention:
    """The rows of one query length in one step; indexes and masks are made when first used.

    Attributes:
        tables: int64 [B, N].
        positions: int64 [B, Q].
        length: L, at most N * block_size.
        alone: there is one row, and `length` is exactly its keys.
    """

    tables: torch.Tensor
    positions: torch.Tensor
    length: int
    alone: bool
    _blocks: dict[int, torch.Tensor] = field(default_factory=dict)
    _masks: dict[tuple[int, torch.dtype], torch.Tensor | None] = field(default_factory=dict)

    def attend(
        self, how: Attend, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Return FP [B * Q, H * D] for queries [B * Q, H, D] and one layer's cache."""
        rows, queries = self.positions.shape
        heads = keys.shape[1]
        key, value = self._gathered(keys), self._gathered(values)
        fused = queries > FEW_QUERIES and not how.softcap
        dtype = fused_mask_type(query.dtype, query.device) if fused else query.dtype
        mask = self._mask(how.window, dtype)
        # [B * Q, K * G, D] -> [B, K, Q, G, D]
        query = query.view(rows, queries, heads, -1, query.shape[-1]).transpose(1, 2)
        if fused:
            result = self._fused(how, query, key, value, mask)
        else:
            result = _products(how, query, key, value, mask)
        return result.transpose(1, 2).reshape(rows * queries, -1)

    def _fused(
        self,
        how: Attend,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        rows, heads, queries, group, dim = query.shape
        grouped = group > 1 and query.device.type == "cpu"
        if group > 1 and not grouped:
            key, value = (item.repeat_interleave(group, 1) for item in (key, value))
        result = functional.scaled_dot_product_attention(
            query.transpose(2, 3).reshape(rows, heads * group, queries, dim),
            key,
            value,
            attn_mask=None if mask is None else mask.unsqueeze(1),
            scale=how.scale,
            enable_gqa=grouped,
        )
        return result.view(rows, heads, group, queries, -1).transpose(2, 3)

    def _gathered(self, cache: torch.Tensor) -> torch.Tensor:
        """Return the rows' keys or values [B, K, L, D]."""
        blocks, heads, block_size, dim = cache.shape
        if heads not in self._blocks:
            each = torch.arange(heads, device=cache.device).view(1, heads, 1)
            self._blocks[heads] = (self.tables.unsqueeze(1) * heads + each).reshape(-1)
        found = cache.view(blocks * heads, block_size * dim).index_select(0, self._blocks[heads])
        return found.view(len(self.tables), heads, -1, dim)[:, :, : self.length]

    def _mask(self, window: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Return what hides keys from queries [B, Q, L], as `mask_of`; None where all is seen."""
        if self.alone and self.positions.shape[1] == 1 and not 0 < window < self.length:
            return None
        if (window, dtype) not in self._masks:
            last = self.positions.unsqueeze(-1)
            keys = torch.arange(self.length, device=last.device)
            seen = keys <= last
            if window:
                seen &= keys > last - window
            self._masks[window, dtype] = mask_of(seen, dtype)
        return self._masks[window, dtype]


def _products(
    how: Attend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Return [B, K, Q, G, D] for queries of that shape, keys and values [B, K, L, D]."""
    rows, heads, queries, group, dim = query.shape
    if mask is None and not how.softcap:  # one row: one call, where several take longer than it
        asked = query.reshape(rows, heads, group, dim)
        found = functional.scaled_dot_product_attention(asked, key, value, scale=how.scale)
        return found.view(rows, heads, queries, group, -1)
    asked = (query * how.scale).reshape(rows * heads, queries * group, dim)
    scores = torch.bmm(asked, key.flatten(0, 1).transpose(1, 2))
    if how.softcap:
        scores = torch.tanh(scores.div_(how.softcap)).mul_(how.softcap)
    if mask is not None:
        scores.view(rows, heads, queries, group, -1).add_(mask.view(rows, 1, queries, 1, -1))
    result = torch.bmm(torch.softmax(scores, -1), value.flatten(0, 1))
    return result.view(rows, heads, queries, group, -1)
