"""An encoder's layers as one module whose shapes follow from the number of tokens alone.

Rows lie end to end, and a mask that is made in the module keeps them apart. So a batch of any shape
is a run of one of few sizes: OpenVINO computes a trace of the module with that size free,
accelerators capture it once for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ge_backend.device.pytorch.encoder import Layers, PackedEncoder
from ge_backend.device.pytorch.mask import fused_mask_type, mask_of
from ge_backend.device.pytorch.packed_rows import PackedRows
from ge_backend.errors import GraphFailed
from ge_backend.tensors import Array

__all__ = ["MaskedLayers", "Pieces", "Tokens"]

DENSE = "ge_dense"
# The score of a token of another row: small enough to be nothing, and a number in BF16, too.
APART = -1e9
NOBODY = -1  # the row of what is behind the last token


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Some whole rows, as the module takes them.

    Attributes:
        inputs: INT64 `[3, R]`: tokens, positions, and whose they are.
        count: how many of the tokens are real; the rest is nobody's.
    """

    inputs: Array
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """How a run of an encoder becomes pieces that are computed one after the other.

    Attributes:
        encoder: whose run it is.
        most: so many tokens at once, of whole rows; a row with more is by itself.
        rounded: how many tokens a piece of so many gets.
    """

    encoder: PackedEncoder
    most: int
    rounded: Callable[[int], int]

    def of(self, packed: PackedRows) -> Iterator[Tokens]:
        """Yield the rows in turn.

        Raises:
            GraphFailed: an engine would read beside its tables. OpenVINO takes what is there for
                zeros, and an accelerator breaks (CUDA: "device-side assert triggered").
        """
        self._check(packed)
        positions = self.encoder.positions(packed)
        for begin, end in _cuts([*packed.firsts[1:].tolist(), len(packed.rows)], self.most):
            count = end - begin
            inputs = np.zeros((3, self.rounded(count)), np.int64)
            inputs[2] = NOBODY
            for place, given in zip(inputs, (packed.ids, positions, packed.rows), strict=True):
                place[:count] = given[begin:end]
            yield Tokens(inputs=inputs, count=count)

    def layers(self, compute: Callable[[Tokens], Array]) -> Layers:
        """Return layers that are computed so.

        Args:
            compute: returns FP32 `[T, W]`, the hidden states of a piece's real tokens.
        """

        def run(packed: PackedRows) -> Array:
            hidden = [compute(tokens) for tokens in self.of(packed)]
            return hidden[0] if len(hidden) == 1 else np.concatenate(hidden)

        return run

    def _check(self, packed: PackedRows) -> None:
        low, high = int(packed.ids.min()), int(packed.ids.max())
        if low < 0 or high >= self.encoder.vocabulary:
            raise GraphFailed(
                f"a token's index out of range: idx={low if low < 0 else high} must be within the "
                f"inclusive range [0,{self.encoder.vocabulary - 1}]"
            )
        longest, most = int(packed.columns.max()) + 1, self.encoder.max_length
        if longest > most:
            raise GraphFailed(f"a row of {longest} tokens; the model takes {most}")


class MaskedLayers(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """The layers of one encoder, whose modules are changed and of no use to another engine.

    One thread at a time computes them: modules find the masks of the present run on themselves.
    """

    def __init__(self, encoder: PackedEncoder) -> None:
        import transformers

        super().__init__()
        # No mask of transformers' is registered for ours: none is made then.
        transformers.AttentionInterface.register(DENSE, _attention)
        encoder.whole.set_attn_implementation(DENSE)
        self._base = encoder.base
        self._dtype = encoder.dtype

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """Return FP32 `[R, W]` of INT64 `[R]` each: tokens, positions, and whose they are."""
        masks = _Masks(rows, positions, self._dtype)
        for module in self._base.modules():
            module.ge_masks = masks
        found = self._base(input_ids=ids.unsqueeze(0), position_ids=positions.unsqueeze(0))
        for module in self._base.modules():
            del module.ge_masks
        hidden: torch.Tensor = found.last_hidden_state[0]
        return hidden.float()


class _Masks:
    """Masks `[1, 1, R, R]` for the fused kernel, by how far a token sees; each is made once."""

    def __init__(self, rows: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype) -> None:
        self._same = rows.unsqueeze(0) == rows.unsqueeze(1)
        self._positions, self._dtype = positions, dtype
        self._made: dict[int | None, torch.Tensor] = {}

    def within(self, window: int | None) -> torch.Tensor:
        """Return the mask for tokens that are less than so far away; None: all of the row."""
        if window not in self._made:
            seen = self._same
            if window is not None:
                apart = self._positions.unsqueeze(0) - self._positions.unsqueeze(1)
                seen = seen & (apart.abs() < window)
            dtype = fused_mask_type(self._dtype, seen.device)
            self._made[window] = mask_of(seen, dtype, APART)[None, None]
        return self._made[window]


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
    masks: Any = module.ge_masks
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (item.repeat_interleave(groups, 1) for item in (key, value))
    found = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=masks.within(sliding_window), scale=scaling
    )
    return found.transpose(1, 2), None


def _cuts(ends: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield where pieces begin and end, of rows that end there; see `Pieces`."""
    begin = end = 0
    for following in ends:
        if following - begin > most and end > begin:
            yield begin, end
            begin = end
        end = following
    yield begin, end
