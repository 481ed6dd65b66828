"""Values for the inputs of a graph outside of traffic: made up, and the same ones at every call."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ge_backend.tensors import Array, DataType, Shape, float32_to_bf16

__all__ = ["MIN_BOUND", "Blank", "filled_in"]

# Whole numbers are below it where nothing is known of the graph: it may look them up in a table.
MIN_BOUND = 2
SEED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Blank:
    """An input without values.

    Attributes:
        kind: what it holds, as `InputLayout.made`; "" for what clients choose.
        fill: what it holds where that is neither chosen nor counted.
    """

    name: str
    dtype: DataType
    shape: Shape
    kind: str = ""
    fill: float = 0.0

    @property
    def whole(self) -> bool:
        """Whether clients choose whole numbers for it."""
        return self.kind == "" and self.dtype.numpy.kind in "iu" and self.dtype.name != "BF16"


def filled_in(
    blanks: Iterable[Blank], bounds: Mapping[str, int], seed: int = SEED
) -> dict[str, Array]:
    """Return a value for each input: random where clients choose it, normal where it is real.

    Args:
        blanks: none of texts.
        bounds: by input, what whole numbers that clients choose are below; others are the fill.
        seed: tells draws apart.
    """
    values: dict[str, Array] = {}
    for blank in blanks:
        # By name, so that one input's size changes no other's values.
        random = np.random.default_rng([seed, zlib.crc32(blank.name.encode())])
        dtype, kind, shape = blank.dtype, blank.kind, blank.shape
        value: Array = np.full(shape, blank.fill)
        if blank.name in bounds:
            most = min(bounds[blank.name], int(np.iinfo(dtype.numpy).max))
            value = random.integers(0, most, shape)
        elif kind == "mask":
            value = np.ones(shape)
        elif kind == "positions" and shape:
            value = np.broadcast_to(np.arange(shape[-1]), shape)
        elif kind == "" and dtype.name == "BF16":
            value = float32_to_bf16(random.standard_normal(shape))
        elif kind == "" and dtype.numpy.kind == "f":
            value = random.standard_normal(shape)
        elif kind == "" and dtype.name == "BOOL":
            value = random.integers(0, 2, shape)
        values[blank.name] = value.astype(dtype.numpy)
    return values
