"""The paged cache of keys and values on one device.

Within a block each head's tokens lie together, so that whole blocks gathered by (row, head, block)
are the operand of a batched product as they are. Letters: K heads, D elements of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ge_backend.device.machine.host_memory import small_page_zeros

__all__ = ["CacheForm", "KeyValueShape", "PagedCache", "SavedCache"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueShape:
    """What one layer keeps for each token."""

    heads: int
    key_dim: int
    value_dim: int

    @property
    def elements(self) -> int:
        """Numbers per token."""
        return self.heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheForm:
    """Tokens of one block, and the type of keys and values."""

    block_size: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class SavedCache:
    """Blocks in host memory: for each layer keys and values [blocks, K, block_size, D]."""

    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]

    @property
    def nbytes(self) -> int:
        """Host memory that they take."""
        return sum(tensor.nbytes for layer in self.layers for tensor in layer)


class PagedCache:
    """Blocks of all layers; allocated here, and nothing later but copies that are asked for.

    On a CPU the system gives a page of 4 KiB when it is first written, so that a large cache costs
    what is used of it. In huge pages the first block of SmolLM2-135M's 60 tensors took 240 MiB.

    Attributes:
        block_bytes: of one block in the first layer.
        keys, values: for each layer [num_blocks, K, block_size, D]. They begin as zeros: what no
            token has written yet is masked, but multiplied all the same.
    """

    def __init__(
        self,
        shapes: Sequence[KeyValueShape],
        *,
        block_size: int,
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks

        def blocks(heads: int, dim: int) -> torch.Tensor:
            shape = (num_blocks, heads, block_size, dim)
            if device.type != "cpu":
                return torch.zeros(shape, dtype=dtype, device=device)
            nbytes = math.prod(shape) * int(dtype.itemsize)
            return torch.from_numpy(small_page_zeros(nbytes)).view(dtype).view(shape)

        self.keys = [blocks(shape.heads, shape.key_dim) for shape in shapes]
        self.values = [blocks(shape.heads, shape.value_dim) for shape in shapes]
        self.block_bytes = shapes[0].elements * block_size * int(dtype.itemsize)

    def write(
        self, layer: int, places: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Put new tokens' keys and values [T, K, D] where `StepTensors.places` says."""
        for cache, new in ((self.keys[layer], key), (self.values[layer], value)):
            rows = new.reshape(-1, new.shape[-1]).to(cache.dtype)
            cache.view(-1, cache.shape[-1]).index_copy_(0, places, rows)

    def clear_padding(self, layer: int) -> None:
        """Let block 0 hold zeros, whatever padding has written there."""
        self.keys[layer][0].zero_()
        self.values[layer][0].zero_()

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks: (source, destination). All are read before any is written."""
        sources, destinations = torch.tensor(pairs, device=self.keys[0].device).unbind(1)
        for cache in (*self.keys, *self.values):
            cache.index_copy_(0, destinations, cache.index_select(0, sources))

    def save(self, blocks: Sequence[int]) -> SavedCache:
        """Return a copy of these blocks in host memory."""
        chosen = torch.tensor(blocks, device=self.keys[0].device)
        return SavedCache(
            tuple(
                (keys.index_select(0, chosen).cpu(), values.index_select(0, chosen).cpu())
                for keys, values in zip(self.keys, self.values, strict=True)
            )
        )

    def restore(self, saved: SavedCache, blocks: Sequence[int]) -> None:
        """Put saved blocks, in their order, into as many others."""
        device = self.keys[0].device
        chosen = torch.tensor(blocks, device=device)
        for (keys, values), *caches in zip(saved.layers, self.keys, self.values, strict=True):
            caches[0].index_copy_(0, chosen, keys.to(device))
            caches[1].index_copy_(0, chosen, values.to(device))
