"""How an ONNX file names the dimensions of its inputs and outputs.

Engines other than ONNX Runtime drop the names, and by them axes of one size are known. Read from
the file's own encoding, as `onnx_external` does.
Source: onnx/onnx.proto, `ModelProto.graph` down to `TensorShapeProto.Dimension.dim_param`.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

from ge_backend.device.files.onnx_external import fields, mapped

__all__ = ["onnx_axes"]

GRAPH = 7
INPUT, OUTPUT = 11, 12
NAME, TYPE = 1, 2
TENSOR = 1
SHAPE = 2
DIMENSION = 1
SYMBOL = 2


def onnx_axes(model: Path) -> Mapping[str, tuple[str, ...]]:
    """Return the names of the dimensions, "" where one has none, by the name of the tensor.

    Raises:
        ModelError: the file is no ONNX model.
    """
    with mapped(model) as data:
        return {
            data[slice(*name)].decode(): tuple(_symbols(data, kind))
            for graph in _inside(data, (0, len(data)), GRAPH)
            for value in _inside(data, graph, INPUT, OUTPUT)
            for name in _inside(data, value, NAME)
            for kind in _inside(data, value, TYPE)
        }


def _symbols(data: mmap.mmap, kind: tuple[int, int]) -> Iterator[str]:
    for tensor in _inside(data, kind, TENSOR):
        for shape in _inside(data, tensor, SHAPE):
            for dimension in _inside(data, shape, DIMENSION):
                named = next(_inside(data, dimension, SYMBOL), None)
                yield "" if named is None else data[slice(*named)].decode()


def _inside(data: mmap.mmap, message: tuple[int, int], *numbers: int) -> Iterator[tuple[int, int]]:
    """Yield where the fields of these numbers begin and end."""
    for number, begin, end in fields(data, *message):
        if number in numbers:
            yield begin, end
