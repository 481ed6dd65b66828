"""What both forms of a decoder are to the rest: layers over a cache, then scores of tokens."""

from __future__ import annotations

from typing import Protocol

import torch

from ge_text.models.adapter import Product
from ge_text.torch.cache import KeyValueShape
from ge_text.torch.step import StepTensors

__all__ = ["Decoder"]


class Decoder(Protocol):
    """A causal decoder with its weights on one device.

    Attributes:
        shapes: what each layer keeps in the cache.
        dtype: of weights and scores.
        device: where they are.
        products: what an adapter can change, by the numbers that `StepTensors.adapt` is told.
    """

    shapes: tuple[KeyValueShape, ...]
    products: tuple[Product, ...]
    dtype: torch.dtype
    device: torch.device

    def logits(self, step: StepTensors) -> torch.Tensor:
        """Write the new tokens' keys and values and return FP [S, vocabulary]."""

    def close(self) -> None:
        """Free the weights; nothing is asked of it afterwards."""
