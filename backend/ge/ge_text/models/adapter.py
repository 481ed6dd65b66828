"""LoRA adapters as plain values: what of a decoder they can change, and what one of them changes.

For each token that has one, `up @ (down @ inputs) * scaling` is added to the outputs of a linear
layer; `down` is [rank, inputs], `up` is [outputs, rank].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LayerChange", "Product", "StoredAdapter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Linear layers of a decoder that take the same inputs and are computed as one.

    Attributes:
        inputs: elements of a row.
        layers: transformers' names of the layers, and the elements that each gives, side by side.
    """

    inputs: int
    layers: Mapping[str, int]

    def elements(self, changes: Mapping[str, LayerChange]) -> int:
        """Return how many numbers hold what an adapter adds to this product."""
        rank = sum(changes[layer].rank for layer in self.layers if layer in changes)
        return rank * (self.inputs + sum(self.layers.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """What an adapter adds to one linear layer.

    Attributes:
        down, up: names of its tensors, [rank, inputs] and [outputs, rank].
        scaling: of their product.
    """

    down: str
    up: str
    rank: int
    scaling: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAdapter:
    """An adapter that was read as far as its header and suits the model.

    Attributes:
        name: what clients call it.
        stamp: changes when one of its files does.
        config, weights: its files.
        changes: by the layer's name.
        nbytes: what it takes on the device.
    """

    name: str
    stamp: str
    config: Path
    weights: Path
    changes: Mapping[str, LayerChange]
    nbytes: int

    @property
    def key(self) -> str:
        """Its identity: another one once its files have changed."""
        return f"{self.name} {self.stamp}"
