"""A step of the engine as tensors of the device, made once and used by all layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache as cached

import numpy as np
import torch

from ge_backend.tensors import Array
from ge_text.models.batch import Batch, Group
from ge_text.torch.attention import FEW_QUERIES, Attend, RowAttention
from ge_text.torch.block_attention import BlockAttention
from ge_text.torch.block_plan import plan_blocks
from ge_text.torch.cache import PagedCache
from ge_text.torch.lora import StepAdapters

__all__ = ["StepTensors", "stage"]

Part = RowAttention | BlockAttention


@dataclass(slots=True)
class StepTensors:
    """What the layers of one step read.

    Attributes:
        ids, positions, slots: int64 [T].
        sampled: int64 [S].
        parts: returns the attention of the groups, in the order of their tokens; made when it is
            first asked for, since some engine attends by itself.
        groups: the batch's own; none where a step is captured.
        padded: there may be padding beside a row's own tokens. It attends to what the row does, and
            what it writes is not for others, least of all if it is no number.
        adapters: of the tokens that have one; None: none has.
    """

    cache: PagedCache
    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    sampled: torch.Tensor
    parts: Callable[[], tuple[Part, ...]]
    groups: tuple[Group, ...] = ()
    padded: bool = False
    adapters: StepAdapters | None = None
    _places: dict[int, torch.Tensor] = field(default_factory=dict)

    def attend(
        self,
        layer: int,
        how: Attend,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> torch.Tensor:
        """Write new keys and values [T, K, D]; return what the queries [T, H, D] find: [T, H * D].

        What is multiplied has the cache's type; what is returned has the queries'.
        """
        self.cache.write(layer, self._places_of(key.shape[1]), key, value)
        if self.padded:
            self.cache.clear_padding(layer)
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        dtype, query = query.dtype, query.to(keys.dtype)
        parts = self.parts()
        if len(parts) == 1:
            return parts[0].attend(how, query, keys, values).to(dtype)
        sizes = [part.positions.numel() for part in parts]
        results = [
            part.attend(how, asked, keys, values)
            for part, asked in zip(parts, query.split(sizes), strict=True)
        ]
        return torch.cat(results).to(dtype)

    def adapt(self, product: int, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Add to the outputs [T, outputs] of a product what its inputs [T, inputs] are due.

        `product` is its number in `Decoder.products`.
        """
        if self.adapters is not None:
            self.adapters.add(product, rows, out)

    def _places_of(self, heads: int) -> torch.Tensor:
        """Return the row of [num_blocks * K * block_size, D] of each token and head: [T * K]."""
        if heads not in self._places:
            size = self.cache.block_size
            block, offset = self.slots.unsqueeze(1) // size, self.slots.unsqueeze(1) % size
            each = torch.arange(heads, device=self.slots.device)
            self._places[heads] = ((block * heads + each) * size + offset).reshape(-1)
        return self._places[heads]


def stage(batch: Batch, cache: PagedCache, device: torch.device) -> StepTensors:
    """Return a batch as tensors of the device; on a CPU they are the batch's own arrays."""

    def placed(array: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    positions = placed(batch.positions)

    @cached
    def parts() -> tuple[Part, ...]:
        sizes = [group.rows * group.query for group in batch.groups]
        return tuple(
            _part(group, of_group.view(group.rows, group.query), cache)
            for group, of_group in zip(batch.groups, positions.split(sizes), strict=True)
        )

    return StepTensors(
        cache=cache,
        ids=placed(batch.ids),
        positions=positions,
        slots=placed(batch.slots),
        sampled=placed(batch.sampled),
        parts=parts,
        groups=batch.groups,
        padded=bool((batch.slots < cache.block_size).any()),
    )


def _part(group: Group, positions: torch.Tensor, cache: PagedCache) -> Part:
    if positions.device.type == "cpu" and group.query <= FEW_QUERIES:
        plan = plan_blocks(group, cache.block_size, cache.block_bytes)
        if plan is not None:
            return BlockAttention(plan, positions)
    tables = torch.from_numpy(np.ascontiguousarray(group.tables)).to(positions.device)
    alone = group.rows == 1 and group.lengths[0] > 0
    held = tables.shape[1] * cache.block_size
    return RowAttention(
        tables=tables,
        positions=positions,
        length=int(group.lengths[0]) if alone else held,
        alone=alone,
    )
