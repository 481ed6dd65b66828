"""Tensors between two models that stay on the device: what is known of them but their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge_backend.executor.protocol.messages import DeviceRows, RetainOutput
from ge_backend.model.layout.layout import InputLayout, OutputLayout
from ge_backend.tensors import Shape

__all__ = ["BatchRetention", "DeviceTensor", "fill_byte"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTensor:
    """One request's tensor on the device; checked and planned with as an array, by its shape.

    Attributes:
        shape: its real one, `[rows, size, …]`.
        dtype: as the host would store it.
        rows: where its rows lie, in order.
    """

    shape: Shape
    dtype: np.dtype[Any]
    rows: tuple[DeviceRows, ...]

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)


@dataclass(frozen=True, slots=True)
class BatchRetention:
    """Which outputs of a batch are to stay, and under which keys they did.

    Attributes:
        outputs: by name, whether they are sent to the host as well.
        numbers: gives the keys; none twice to one owner.
        keys: those that were given are added here, to be freed.
        unrequested: outputs that neither a step nor a client asks for.
    """

    outputs: Mapping[str, bool]
    numbers: Iterator[int]
    keys: list[int]
    unrequested: frozenset[str] = frozenset()

    def retain(self, output: OutputLayout, shape: Shape) -> RetainOutput:
        """Return an output of one run, padded to this shape, under a key of its own."""
        key = next(self.numbers)
        self.keys.append(key)
        return RetainOutput(
            name=output.name,
            dtype=output.dtype.name,
            shape=shape,
            key=key,
            also_to_host=self.outputs[output.name],
        )


def fill_byte(item: InputLayout) -> int:
    """Return the byte that an input's padding consists of; -1 if it consists of several."""
    stored = set(np.array(item.fill).astype(item.dtype.numpy).tobytes())
    return stored.pop() if len(stored) == 1 else -1
