"""How an ONNX file names its inputs, and the dimensions of its inputs and outputs.

Engines other than ONNX Runtime drop these names, and by them axes of one size are known. Read from
the file's own encoding, as `onnx_external` does.
Source: onnx/onnx.proto, `ModelProto.graph` down to `TensorShapeProto.Dimension.dim_param`, and
`TensorProto.name`.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

from ge_backend.device.files.onnx_external import fields, mapped

__all__ = ["onnx_axes", "onnx_inputs"]

GRAPH = 7
WEIGHTS, INPUT, OUTPUT = 5, 11, 12
NAME, TYPE = 1, 2
TENSOR = 1
SHAPE = 2
DIMENSION = 1
SYMBOL = 2
WEIGHTS_NAME = 8


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


def onnx_inputs(model: Path) -> list[str]:
    """Return the names of the inputs in their order; weights that are listed among them are none.

    Raises:
        ModelError: the file is no ONNX model.
    """

    def names(number: int, name: int) -> list[str]:
        return [
            data[slice(*found)].decode()
            for graph in _inside(data, (0, len(data)), GRAPH)
            for message in _inside(data, graph, number)
            for found in _inside(data, message, name)
        ]

    with mapped(model) as data:
        weights = set(names(WEIGHTS, WEIGHTS_NAME))
        return [name for name in names(INPUT, NAME) if name not in weights]


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
