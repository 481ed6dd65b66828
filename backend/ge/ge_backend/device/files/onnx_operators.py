"""Which operators an ONNX file has, those of its branches and functions included.

Read from the file's own encoding, as `onnx_external` does.
Source: onnx/onnx.proto, `ModelProto` down to `NodeProto.op_type`.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

from ge_backend.device.files.onnx_external import fields, mapped

__all__ = ["onnx_operators"]

# Message -> field number -> the message in it: the way to every node.
FIELDS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node"},
    "function": {7: "node"},
    "node": {4: "operator", 5: "attribute"},
    "attribute": {6: "graph", 11: "graph"},
}


def onnx_operators(model: Path) -> frozenset[str]:
    """Return the operators' names, without their domains.

    Raises:
        ModelError: the file is no ONNX model.
    """
    with mapped(model) as data:
        return frozenset(_operators(data, "model", 0, len(data)))


def _operators(data: mmap.mmap, message: str, at: int, end: int) -> Iterator[str]:
    if message == "operator":
        yield data[at:end].decode()
        return
    inner = FIELDS[message]
    for number, begin, stop in fields(data, at, end):
        if number in inner:
            yield from _operators(data, inner[number], begin, stop)
