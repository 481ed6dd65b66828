"""A classifier's head as transformers computes it, of hidden states that came from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ge_backend.engines.torch.pretrained import UNUSED, quiet
from ge_backend.tensors import Array

__all__ = ["Head"]

TRIED = 7  # tokens, by which it is found out which of them count
NEAR = 1e-5


class Head:
    """All that a classifier has behind its encoder.

    Args:
        whole: a model of transformers, which is of no other use then: its encoder is taken out.
    """

    def __init__(self, whole: Any) -> None:
        self._dtype, self._width = whole.dtype, whole.config.hidden_size
        setattr(whole, whole.base_model_prefix, _Given(whole.base_model))
        # A decoder's head takes the last token, of several rows only where this says something.
        if getattr(whole.config, "pad_token_id", None) is None:
            whole.config.pad_token_id = 0
        self._whole = whole

    def scores(self, hidden: Array, spans: Sequence[tuple[int, int, int]]) -> Array:
        """Return FP32 `[B, width]`, or `[B, L, width]` of what gives scores for each token.

        Args:
            hidden: FP32 `[T, W]`, tokens of rows end to end.
            spans: (begin, count, length): `count` rows of one length lie from `begin` on.
        """
        return np.concatenate(
            [
                self._logits(hidden[begin : begin + count * length].reshape(count, length, -1))
                for begin, count, length in spans
            ]
        )

    def reduction(self) -> str:
        """Return what of a row it looks at: its `first` or `last` token, their `mean`, or "", all.

        Found out in FP32, by what it says of numbers that are far from one another.
        """
        self._whole.float()
        dtype, self._dtype = self._dtype, torch.float32
        row = np.sin(np.arange(TRIED * self._width, dtype=np.float32)).reshape(1, TRIED, -1)
        with quiet():  # a decoder's says, once, that it knows of no padding
            expected = self._logits(row)
        most = NEAR * np.abs(expected).max()
        tried = {"first": row[:, :1], "last": row[:, -1:], "mean": row.mean(1, keepdims=True)}
        found = [
            k for k, one in tried.items() if np.abs(self._logits(one) - expected).max() <= most
        ]
        self._dtype = dtype
        self._whole.to(dtype)
        return (*found, "")[0]

    def _logits(self, hidden: Array) -> Array:
        """Return FP32 `[B, width]`, or `[B, L, width]`, of `[B, L, W]`."""
        found = self._whole(inputs_embeds=torch.from_numpy(hidden).to(self._dtype))
        logits: Array = found.logits.float().numpy()
        return logits


class _Output(NamedTuple):
    """What heads read of an encoder's output; transformers' own classes take longer than a head."""

    last_hidden_state: torch.Tensor
    pooler_output: torch.Tensor | None
    past_key_values: None = None
    hidden_states: None = None
    attentions: None = None


class _Given(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Stands where a head has its encoder, and gives what the whole is called with."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self._pooler: Any = getattr(base, UNUSED, None)
        self._activation: Any = getattr(base, "pooler_activation", None)  # ALBERT's

    def forward(self, *_args: Any, inputs_embeds: torch.Tensor, **_options: Any) -> _Output:
        pooled = None
        if self._activation is not None:
            pooled = self._activation(self._pooler(inputs_embeds[:, 0]))
        elif self._pooler is not None:
            pooled = self._pooler(inputs_embeds)
        return _Output(inputs_embeds, pooled)
