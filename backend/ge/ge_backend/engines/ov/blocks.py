"""Attention of rows end to end, a block of whole rows at a time.

A mask over all tokens of a run lets every token be compared with every other one, and most of that
thrown away. Here rows stand together in blocks as wide as the longest of them, and a token is
compared with those of its block: so scores are as many as tokens times the longest row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ge_backend.engines.torch.masked_layers import NO_ROW, Masks, RowAttention
from ge_backend.tensors import Array

__all__ = ["STEPS", "Blocks", "arrange", "in_blocks", "width_for"]

# Blocks are a multiple of these wide, by the arithmetic as OpenVINO calls it. In BF16 on AMX 8 and
# 16 rows of log-normal lengths took 2 to 10 % longer with 16, and 32 rows as long; without it one
# row of more than 64 tokens took 2 to 3 % longer. In FP32 one and two rows took 2 to 3 % less with
# 16, and more rows as long.
STEPS = {"bf16": 32, "f32": 16}
# Lengths of rows alone whose blocks are kept; the longest take 50 kB.
KEPT = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """R tokens of rows end to end, and where they stand in N blocks of W slots.

    Attributes:
        slots: INT64 `[R]`, where each token stands, of N * W; behind the last row the first slot.
        block_tokens: INT64 `[2, N, W]`: which token stands there, the first one where none does,
            and whose it is, `NO_ROW` where there is none.
    """

    slots: Array
    block_tokens: Array


def arrange(ends: Array, size: int, step: int, width: int = 0) -> Blocks:
    """Return whole rows in few blocks: the longest first, each in the first that has room.

    Args:
        ends: INT64 `[rows + 1]`: where rows begin and end, from 0 on.
        size: R.
        step: blocks are a multiple of it wide.
        width: of the blocks, where all rows find room in one; 0: as wide as the longest needs.
    """
    if len(ends) == 2:  # noqa: PLR2004 - one row
        length = int(ends[1])
        return _alone(length, size, width or width_for(max(1, length), step))
    lengths = np.diff(ends)
    width = width or width_for(int(lengths.max(initial=1)), step)
    starts = np.zeros_like(lengths)
    free: list[int] = []
    for row in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[row])
        block = next((at for at, left in enumerate(free) if left >= length), len(free))
        if block == len(free):
            free.append(width)
        starts[row] = (block + 1) * width - free[block]
        free[block] -= length
    count = int(ends[-1])
    slots = np.zeros(size, np.int64)
    slots[:count] = np.repeat(starts - ends[:-1], lengths) + np.arange(count)
    block_tokens = np.zeros((2, max(1, len(free)) * width), np.int64)
    block_tokens[1] = NO_ROW
    block_tokens[:, slots[:count]] = np.arange(count), np.repeat(np.arange(len(lengths)), lengths)
    return Blocks(slots=slots, block_tokens=block_tokens.reshape(2, -1, width))


@functools.lru_cache(maxsize=KEPT)
def _alone(length: int, size: int, width: int) -> Blocks:
    """Return one row as it always stands; all who ask get the same arrays, which none changes."""
    slots = np.zeros(size, np.int64)
    slots[:length] = np.arange(length)
    block_tokens = np.zeros((2, 1, width), np.int64)
    block_tokens[1] = NO_ROW
    block_tokens[:, 0, :length] = np.arange(length), np.zeros(length, np.int64)
    for array in (slots, block_tokens):
        array.flags.writeable = False
    return Blocks(slots=slots, block_tokens=block_tokens)


def width_for(length: int, step: int) -> int:
    """Return how wide a block is that a row of `length` tokens stands in."""
    return -(-length // step) * step


def in_blocks(dtype: torch.dtype) -> Callable[..., RowAttention]:
    """Return what keeps rows apart so, of `Blocks` and of positions, in layers of this type."""
    return lambda slots, block_tokens, positions: _InBlocks(slots, block_tokens, positions, dtype)


class _InBlocks:
    def __init__(
        self,
        slots: torch.Tensor,
        block_tokens: torch.Tensor,
        positions: torch.Tensor,
        dtype: torch.dtype,
    ) -> None:
        tokens, rows = block_tokens[0], block_tokens[1]
        self._shape, self._tokens, self._slots = tokens.shape, tokens.reshape(-1), slots
        standing = positions.index_select(0, self._tokens).reshape(self._shape)
        self._masks = Masks(rows, standing, dtype)

    def attend(self, *heads: torch.Tensor, **how: Any) -> torch.Tensor:
        """See `RowAttention`."""
        number, width = heads[0].shape[1], heads[0].shape[3]
        found = self._masks.attend(*map(self._blocks, heads), **how)
        rows = found.transpose(1, 2).reshape(-1, number * width).index_select(0, self._slots)
        return rows.reshape(1, -1, number, width).transpose(1, 2)

    def _blocks(self, heads: torch.Tensor) -> torch.Tensor:
        """Return `[N, H, W, D]` of `[1, H, R, D]`."""
        number, width = heads.shape[1], heads.shape[3]
        rows = heads.transpose(1, 2).reshape(-1, number * width).index_select(0, self._tokens)
        return rows.reshape(*self._shape, number, width).transpose(1, 2)
