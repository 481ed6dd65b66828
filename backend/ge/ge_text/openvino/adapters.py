"""What the graph of steps with adapters is given for them.

Beside each product `rows @ weight` it computes `(rows @ down) * whose @ up`. The matrices of all
adapters of the step stand side by side, R columns together, and `whose` [T, R] says which columns
are a token's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ge_text.models.adapter import Product
from ge_text.openvino.graph import WHOSE, adapter_names, tensor_of
from ge_text.torch.lora import Change, Changes, StepAdapters

__all__ = ["AdapterInputs"]


@dataclass(frozen=True, slots=True)
class _Columns:
    """An adapter's columns: how many, the same in each product, and what its tokens have there."""

    count: int
    own: float

    @classmethod
    def of(cls, changes: Changes) -> _Columns:
        """Return those of an adapter; one that has what is no number keeps it to its tokens."""
        made = [change for change in changes if change]
        parts = [part for change in made for part in (change.down, change.up)]
        finite = all(bool(part.isfinite().all()) for part in parts)
        return cls(max([len(change.down) for change in made], default=1), 1 if finite else math.nan)

    def placed(self, change: Change | None, like: Change) -> Change:
        """Return a product's matrices, as wide; 0 where nothing is changed, or is no number."""
        down = like.down.new_zeros(self.count, like.down.shape[1])
        up = like.up.new_zeros(like.up.shape[0], self.count)
        if change and not math.isnan(self.own):
            rank = len(change.down)
            down[:rank], up[:, :rank] = change.down, change.up
        return Change(down, up)


class AdapterInputs:
    """The inputs of one graph that are for adapters; those of the last step are kept.

    Args:
        products: the graph's, by number.
        dtype: of their matrices.
    """

    def __init__(self, products: Sequence[Product], dtype: torch.dtype) -> None:
        self._empty = [
            Change(
                torch.zeros(0, product.inputs, dtype=dtype),
                torch.zeros(sum(product.layers.values()), 0, dtype=dtype),
            )
            for product in products
        ]
        self._adapters: list[Changes] = []  # the last step's
        self._columns: list[_Columns] = []
        self._kept: list[Change] = []  # what the graph reads
        self._whose = torch.empty(0)

    def of(self, step: StepAdapters, num_tokens: int) -> Iterator[tuple[str, Any]]:
        """Yield OpenVINO's tensors by the graph's names: those that the last step did not have."""
        parts = sorted(step.parts, key=lambda part: id(part[1]))  # in whatever order they come
        adapters = [changes for _, changes in parts]
        if [*map(id, adapters)] != [*map(id, self._adapters)]:
            self._adapters = []  # until the graph has all of these
            self._columns = [*map(_Columns.of, adapters)]
            self._kept = [self._joined(adapters, number) for number in range(len(self._empty))]
            for number, change in enumerate(self._kept):
                tensors = tensor_of(change.down), tensor_of(change.up)
                yield from zip(adapter_names(number), tensors, strict=True)
            self._adapters = adapters
        self._whose = self._whose_of([tokens for tokens, _ in parts], num_tokens)
        yield WHOSE, tensor_of(self._whose)

    def _joined(self, adapters: Sequence[Changes], number: int) -> Change:
        """Return the matrices of all adapters for one product, side by side."""
        empty = self._empty[number]
        parts = [
            columns.placed(changes[number], empty)
            for columns, changes in zip(self._columns, adapters, strict=True)
        ]
        down, up = torch.cat([part.down for part in parts]), torch.cat([p.up for p in parts], 1)
        return Change(down, up)

    def _whose_of(
        self, of_adapters: Sequence[torch.Tensor | None], num_tokens: int
    ) -> torch.Tensor:
        """Return float32 [T, R], given each adapter's tokens; None: all are."""
        whose = torch.zeros(num_tokens, sum(columns.count for columns in self._columns))
        first = 0
        for tokens, columns in zip(of_adapters, self._columns, strict=True):
            rows = slice(None) if tokens is None else tokens
            whose[rows, first : first + columns.count] = columns.own
            first += columns.count
        return whose
