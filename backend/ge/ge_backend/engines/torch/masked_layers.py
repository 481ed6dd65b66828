"""An encoder's layers as one module whose shapes follow from the number of tokens alone.

Rows lie end to end, and a mask that is made in the module keeps them apart, or a kernel that is
told where they end. So a batch of any shape is a run of one of few sizes: OpenVINO computes a trace
of the module with that size free, accelerators capture it once for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch

from ge_backend.device.arrays import check_indices
from ge_backend.device.imports import importing
from ge_backend.engines.torch.encoder import Layers, PackedEncoder
from ge_backend.engines.torch.mask import fused_mask_type, mask_of
from ge_backend.engines.torch.packed_rows import PackedRows, is_causal
from ge_backend.errors import GraphFailed
from ge_backend.tensors import Array

__all__ = ["NO_ROW", "MaskedLayers", "Masks", "RowAttention", "RowChunks", "Tokens", "masks"]

ATTENTION = "ge_row_attention"
# The score of a token of another row: small enough to be nothing, and a number in BF16, too.
MASKED_SCORE = -1e9
NO_ROW = -1  # the row of what is behind the last token


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Some whole rows, as the module takes them.

    Attributes:
        inputs: INT64 `[4, R]`: tokens, positions, types, and whose they are.
        count: how many of the tokens are real; the rest belong to no row.
        ends: INT64 `[rows + 1]`: where rows begin and end, from 0 to `count`.
    """

    inputs: Array
    count: int
    ends: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChunks:
    """How a run of an encoder becomes chunks that are computed one after the other.

    Attributes:
        encoder: whose run it is.
        most: tokens at once at most, of whole rows; a row with more is by itself.
        rounded: returns the size of a chunk by its number of tokens.
        least: what a row, and what is behind the last one, counts as, at least. So a chunk of R
            tokens has less than `R / least` rows.
    """

    encoder: PackedEncoder
    most: int
    rounded: Callable[[int], int]
    least: int = 0

    def of(self, packed: PackedRows) -> Iterator[Tokens]:
        """Yield the rows in turn.

        Raises:
            GraphFailed: an engine would read beside its tables. OpenVINO takes what is there for
                zeros, and an accelerator breaks (CUDA: "device-side assert triggered").
        """
        self._check(packed)
        all_ends = [*packed.firsts.tolist(), len(packed.rows)]
        for first, last in self._cuts([end - begin for begin, end in pairwise(all_ends)]):
            ends = np.array(all_ends[first : last + 1])
            begin, end = all_ends[first], all_ends[last]
            count = end - begin
            size = self.rounded(max(count, self.least * len(ends)))
            inputs = np.zeros((4, size), np.int64)
            inputs[3] = NO_ROW
            for place, given in zip(
                inputs, (packed.ids, packed.positions, packed.types, packed.rows), strict=True
            ):
                if given is not None:
                    place[:count] = given[begin:end]
            yield Tokens(inputs=inputs, count=count, ends=ends - begin)

    def layers(self, compute: Callable[[Tokens], Array]) -> Layers:
        """Return layers that are computed so.

        Args:
            compute: returns FP32 `[T, W]`, the hidden states of a chunk's real tokens, or what they
                are reduced to.
        """

        def run(packed: PackedRows) -> Array:
            hidden = [compute(tokens) for tokens in self.of(packed)]
            return hidden[0] if len(hidden) == 1 else np.concatenate(hidden)

        return run

    def _cuts(self, lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield which rows are a chunk: the first, and the one behind the last."""
        first, size = 0, self.least
        for row, length in enumerate(lengths):
            own = max(length, self.least)
            if size + own > self.most and row > first:
                yield first, row
                first, size = row, self.least
            size += own
        yield first, len(lengths)

    def _check(self, packed: PackedRows) -> None:
        known = self.encoder
        check_indices("a token's index out of range:", packed.ids, 0, known.vocabulary - 1)
        if packed.types is not None:
            check_indices("a token's type out of range:", packed.types, 0, known.token_types - 1)
        longest, most = int(packed.columns.max()) + 1, known.max_length
        if longest > most:
            raise GraphFailed(f"a row of {longest} tokens; the model takes {most}")


class RowAttention(Protocol):
    """How the tokens of one run see those of their own row, and no others."""

    def attend(
        self, *heads: torch.Tensor, scale: float | None, window: int | None, causal: bool
    ) -> torch.Tensor:
        """Return FP `[1, H, R, D]`, perhaps a view, of queries, keys and values of that shape each.

        A token sees those of its row that are less than `window` away, None: all; with `causal`
        none behind itself.
        """


class MaskedLayers(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """The layers of one encoder, whose modules are changed and of no use to another engine.

    One thread at a time computes them: modules find what keeps rows apart on themselves.

    Args:
        encoder: whose modules they are.
        attention: makes, of all that `forward` gets about rows and of its positions, what keeps
            rows apart; None: masks.
    """

    def __init__(
        self,
        encoder: PackedEncoder,
        attention: Callable[..., RowAttention] | None = None,
    ) -> None:
        with importing():
            from transformers import AttentionInterface

        super().__init__()
        # No mask of transformers' is registered for ours: none is made then.
        AttentionInterface.register(ATTENTION, _attention)
        encoder.base.set_attn_implementation(ATTENTION)
        self._encoder, self._base = encoder, encoder.base
        self._row_attention: Callable[..., RowAttention] = attention or masks(encoder.dtype)

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        types: torch.Tensor,
        *rows: torch.Tensor,
    ) -> torch.Tensor:
        """Return FP32 `[R, W]` of INT64 `[R]` each: tokens, positions and types.

        What it gets about rows is what `attention` takes; masks take INT64 `[R]`, whose the
        tokens are.
        """
        attention = self._row_attention(*rows, positions)
        for module in self._base.modules():
            module.ge_row_attention = attention
        try:
            hidden = self._encoder.hidden(ids, positions, types)
        finally:  # it is on the device
            for module in self._base.modules():
                del module.ge_row_attention
        return hidden.float()


def masks(dtype: torch.dtype) -> Callable[[torch.Tensor, torch.Tensor], RowAttention]:
    """Return what keeps rows apart by masks, in layers that compute in this type."""
    return lambda rows, positions: Masks(rows[None], positions[None], dtype)


class Masks:
    """Masks `[N, 1, W, W]` for the fused kernel, by how far a token sees; each is made once.

    Args:
        rows, positions: INT64 `[N, W]`, of N blocks of W tokens, which see none of another block.
        dtype: what layers compute in.
    """

    def __init__(self, rows: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype) -> None:
        self._same = rows.unsqueeze(1) == rows.unsqueeze(2)
        self._positions, self._dtype = positions, dtype
        self._made: dict[tuple[int | None, bool], torch.Tensor] = {}

    def attend(
        self, *heads: torch.Tensor, scale: float | None, window: int | None, causal: bool
    ) -> torch.Tensor:
        """See `RowAttention`; of `[N, H, W, D]`."""
        found: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(
            *heads, attn_mask=self._seen(window, causal=causal), scale=scale
        )
        return found

    def _seen(self, window: int | None, *, causal: bool) -> torch.Tensor:
        """Return the mask of what tokens see; see `RowAttention.attend`."""
        if (window, causal) not in self._made:
            seen = self._same
            if causal or window is not None:
                ahead = self._positions.unsqueeze(1) - self._positions.unsqueeze(2)
                if window is not None:
                    seen = seen & (ahead.abs() < window)
                seen = seen & (ahead <= 0) if causal else seen
            dtype = fused_mask_type(self._dtype, seen.device)
            self._made[window, causal] = mask_of(seen, dtype, MASKED_SCORE).unsqueeze(1)
        return self._made[window, causal]


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend among the tokens of a row; arguments and result as in `packed_attention`."""
    attention: Any = module.ge_row_attention
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (item.repeat_interleave(groups, 1) for item in (key, value))
    found: torch.Tensor = attention.attend(
        query, key, value, scale=scaling, window=sliding_window, causal=is_causal(module)
    )
    return found.transpose(1, 2), None
