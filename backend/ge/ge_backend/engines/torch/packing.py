"""Several tensors in one block of memory, so that they move between host and device in one copy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

import torch

from ge_backend.tensors import Array, Shape

__all__ = ["Packing"]

# What device allocators align to, so that kernels see each tensor as if it were allocated alone.
ALIGNMENT = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    dtype: torch.dtype
    shape: Shape
    begin: int
    end: int


class Packing:
    """Where in a block of bytes each tensor lies.

    Args:
        kinds: name -> (type, shape).

    Attributes:
        nbytes: the size of a block; at least 1, since devices do not allocate nothing.
        num_rows: of all tensors together, along their first dimensions.
    """

    def __init__(self, kinds: Mapping[str, tuple[torch.dtype, Shape]]) -> None:
        self._fields: dict[str, _Field] = {}
        end = 0
        for name, (dtype, shape) in kinds.items():
            begin = -(-end // ALIGNMENT) * ALIGNMENT
            end = begin + math.prod(shape) * dtype.itemsize
            self._fields[name] = _Field(dtype=dtype, shape=shape, begin=begin, end=end)
        self.nbytes = max(1, end)
        self.num_rows = sum(math.prod(field.shape[:1]) for field in self._fields.values())

    def tensors(self, block: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the tensors in a block, UINT8 `[nbytes]`; views."""
        return {
            name: block[field.begin : field.end].view(field.dtype).view(field.shape)
            for name, field in self._fields.items()
        }

    def spans(self, names: Container[str]) -> Iterator[slice]:
        """Yield the parts of a block that hold these tensors; neighbours are one part."""
        for wanted, group in itertools.groupby(self._fields.items(), lambda item: item[0] in names):
            fields = [field for _, field in group]
            if wanted and fields[-1].end > fields[0].begin:
                yield slice(fields[0].begin, fields[-1].end)

    def first_rows(self, names: Container[str], rows: int) -> Iterator[slice]:
        """Yield the parts that hold the first rows of these tensors, one for each."""
        for name, field in self._fields.items():
            if name in names and (size := field.end - field.begin):
                yield slice(field.begin, field.begin + size // field.shape[0] * rows)

    def arrays(self, block: torch.Tensor) -> dict[str, Array]:
        """Return the tensors in a host block as arrays; views, BF16 as uint16."""
        return {name: _array(tensor) for name, tensor in self.tensors(block).items()}


def _array(tensor: torch.Tensor) -> Array:
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    array: Array = tensor.numpy()
    return array
