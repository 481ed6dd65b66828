"""What an ONNX file says that is needed without an engine, or that engines drop.

Read from the file's own encoding, so that no library has to be there: only the few fields on the
way to what is asked for are looked into, all else is skipped over.
Source: onnx/onnx.proto for the field numbers, the protocol buffers' encoding page for the rest.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ge_backend.errors import ModelError

__all__ = [
    "OnnxNode",
    "external_data",
    "onnx_axes",
    "onnx_inputs",
    "onnx_nodes",
    "onnx_operators",
    "onnx_opset",
    "onnx_shapeless",
    "onnx_weights",
]

# Message -> field number -> the message in it: the way to what has no entry, in subgraphs too.
Ways = Mapping[str, Mapping[int, str]]
EXTERNAL: Ways = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
KEY, VALUE = 1, 2
OPERATORS: Ways = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node"},
    "function": {7: "node"},
    "node": {4: "operator", 5: "attribute"},
    "attribute": {6: "graph", 11: "graph"},
}
WEIGHTS: Ways = {"model": {7: "graph"}, "graph": {5: "tensor"}, "tensor": {8: "name"}}
STORED: Ways = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {6: "graph", 11: "graph"},
}
INPUTS: Ways = {"model": {7: "graph"}, "graph": {11: "value"}, "value": {1: "name"}}
VALUES: Ways = {"model": {7: "graph"}, "graph": {11: "value"}}
TENSORS: Ways = {"model": {7: "graph"}, "graph": {11: "value", 12: "value"}}
NAME: Ways = {"value": {1: "name"}}
DIMENSIONS: Ways = {
    "value": {2: "type"},
    "type": {1: "tensor"},
    "tensor": {2: "shape"},
    "shape": {1: "dimension"},
}
SHAPE: Ways = {"value": {2: "type"}, "type": {1: "tensor"}, "tensor": {2: "shape"}}
SYMBOL: Ways = {"dimension": {2: "symbol"}}
NODES: Ways = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node"},
    "function": {7: "node"},
}
BRANCHES: Ways = {"node": {5: "attribute"}, "attribute": {6: "graph", 11: "graph"}}
ATTRIBUTES: Ways = {"node": {5: "attribute"}}
OPSETS: Ways = {"model": {8: "opset"}}

# Fields of a node, of an attribute, of an operator set, and of a tensor.
NODE_INPUT, NODE_NAME, NODE_OPERATOR, NODE_DOMAIN = 1, 3, 4, 7
ATTRIBUTE_NAME, ATTRIBUTE_WHOLE, ATTRIBUTE_TEXT = 1, 3, 4
OPSET_DOMAIN, OPSET_VERSION = 1, 2
TENSOR_TYPE, TENSOR_NAME = 2, 8

VARINT, LENGTH_DELIMITED = 0, 2
FIXED_BYTES = {1: 8, 5: 4}

Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxNode:
    """One operator of a file, as far as it is asked about.

    Attributes:
        operator: which one it is, without its domain.
        domain: whose it is: "" of ONNX itself.
        name: "" where the file gives it none.
        inputs: the names of what it takes, "" for one that is left out.
        attributes: those that are a whole number or a text.
        stated: the names of all that it has, of any type.
    """

    operator: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, int | str]
    stated: frozenset[str]


def external_data(model: Path) -> list[tuple[str, Path]]:
    """Return the files of a model's weights outside it: as it names them, and where they are.

    Raises:
        ModelError: the file is no ONNX model, or one that it names is missing.
    """
    with _mapped(model) as data:
        entries = _found(data, EXTERNAL, "model", (0, len(data)))
        pairs = [{n: data[begin:end] for n, begin, end in _fields(data, *one)} for one in entries]
        found = {pair.get(VALUE, b"").decode() for pair in pairs if pair.get(KEY) == b"location"}
    for location in sorted(found):
        if not (model.parent / location).is_file():
            link = f"; {model.name} is a link: link {location} beside it, too"
            raise ModelError(
                f"{model}: its weights are in {location!r}, which is not beside it"
                + (link if model.is_symlink() else "")
            )
    return [(location, model.parent / location) for location in sorted(found)]


def onnx_operators(model: Path) -> frozenset[str]:
    """Return the names of the operators, without their domains.

    Raises:
        ModelError: the file is no ONNX model.
    """
    with _mapped(model) as data:
        return frozenset(_texts(data, OPERATORS, "model", (0, len(data))))


def onnx_nodes(model: Path) -> list[OnnxNode]:
    """Return the operators, those of subgraphs and functions included.

    Raises:
        ModelError: the file is no ONNX model.
    """
    with _mapped(model) as data:
        return list(_nodes(data, "model", (0, len(data))))


def onnx_opset(model: Path) -> int:
    """Return the version of ONNX's own operators that the file is written in; 0 for none.

    Raises:
        ModelError: the file is no ONNX model.
    """
    with _mapped(model) as data:
        for begin, end in _found(data, OPSETS, "model", (0, len(data))):
            fields = {number: (at, to) for number, at, to in _fields(data, begin, end, VARINT)}
            if _text(data, fields, OPSET_DOMAIN) in ("", "ai.onnx"):
                return _varint(data, fields[OPSET_VERSION][0])[0] if OPSET_VERSION in fields else 0
    return 0


def onnx_inputs(model: Path) -> list[str]:
    """Return the names of the inputs in their order; weights that are listed among them are none.

    Raises:
        ModelError: the file is no ONNX model.
    """
    with _mapped(model) as data:
        weights = set(_texts(data, WEIGHTS, "model", (0, len(data))))
        names = _texts(data, INPUTS, "model", (0, len(data)))
        return [name for name in names if name not in weights]


def onnx_weights(model: Path) -> Mapping[str, int]:
    """Return the element types of the weights by their names, as `TensorProto.DataType` counts.

    Raises:
        ModelError: the file is no ONNX model.
    """
    found: dict[str, int] = {}
    with _mapped(model) as data:
        for begin, end in _found(data, STORED, "model", (0, len(data))):
            fields = {number: (at, to) for number, at, to in _fields(data, begin, end, VARINT)}
            if TENSOR_TYPE in fields:
                name = _text(data, fields, TENSOR_NAME)
                found[name] = _varint(data, fields[TENSOR_TYPE][0])[0]
    return found


def onnx_shapeless(model: Path) -> list[str]:
    """Return the names of the inputs of which the file does not say how many dimensions they have.

    Raises:
        ModelError: the file is no ONNX model.
    """
    with _mapped(model) as data:
        return [
            name
            for value in _found(data, VALUES, "model", (0, len(data)))
            for name in _texts(data, NAME, "value", value)
            if not any(True for _ in _found(data, SHAPE, "value", value))
        ]


def onnx_axes(model: Path) -> Mapping[str, tuple[str, ...]]:
    """Return the names of the dimensions, "" where one has none, by the name of input or output.

    Engines other than ONNX Runtime drop them, and by them axes of one size are known.

    Raises:
        ModelError: the file is no ONNX model.
    """
    with _mapped(model) as data:
        return {
            name: tuple(
                next(_texts(data, SYMBOL, "dimension", dimension), "")
                for dimension in _found(data, DIMENSIONS, "value", value)
            )
            for value in _found(data, TENSORS, "model", (0, len(data)))
            for name in _texts(data, NAME, "value", value)
        }


@contextlib.contextmanager
def _mapped(model: Path) -> Iterator[mmap.mmap]:
    """Give the bytes of a model; what goes wrong with them is a ModelError."""
    try:
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
    except (OSError, ValueError, IndexError) as error:
        raise ModelError(f"{model}: not an ONNX model that can be read: {error}") from error


def _texts(data: mmap.mmap, ways: Ways, message: str, span: Span) -> Iterator[str]:
    return (data[begin:end].decode() for begin, end in _found(data, ways, message, span))


def _found(data: mmap.mmap, ways: Ways, message: str, span: Span) -> Iterator[Span]:
    """Yield where all that lies to which the ways lead from a message."""
    if message not in ways:
        yield span
        return
    for number, begin, end in _fields(data, *span):
        if number in ways[message]:
            yield from _found(data, ways, ways[message][number], (begin, end))


def _nodes(data: mmap.mmap, message: str, span: Span) -> Iterator[OnnxNode]:
    for node in _found(data, NODES, message, span):
        fields = list(_fields(data, *node))
        spans = {number: (begin, end) for number, begin, end in fields}
        pairs = [_attribute(data, one) for one in _found(data, ATTRIBUTES, "node", node)]
        domain = _text(data, spans, NODE_DOMAIN)
        yield OnnxNode(
            operator=_text(data, spans, NODE_OPERATOR),
            domain="" if domain == "ai.onnx" else domain,
            name=_text(data, spans, NODE_NAME),
            inputs=tuple(data[b:e].decode() for number, b, e in fields if number == NODE_INPUT),
            attributes={name: value for name, value in pairs if value is not None},
            stated=frozenset(name for name, _ in pairs),
        )
        for graph in _found(data, BRANCHES, "node", node):
            yield from _nodes(data, "graph", graph)


def _attribute(data: mmap.mmap, span: Span) -> tuple[str, int | str | None]:
    fields = {number: (begin, end) for number, begin, end in _fields(data, *span, VARINT)}
    name = _text(data, fields, ATTRIBUTE_NAME)
    if ATTRIBUTE_TEXT in fields:
        return name, _text(data, fields, ATTRIBUTE_TEXT)
    if ATTRIBUTE_WHOLE in fields:
        return name, _signed(_varint(data, fields[ATTRIBUTE_WHOLE][0])[0])
    return name, None


def _text(data: mmap.mmap, fields: Mapping[int, Span], number: int) -> str:
    begin, end = fields.get(number, (0, 0))
    return data[begin:end].decode(errors="replace")


def _signed(value: int) -> int:
    """Return a number of 64 bits whose highest one is its sign."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(data: mmap.mmap, at: int, end: int, *further: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number, begin, end) of each length-delimited field of a message.

    Those of `further` wire types, too, of which there is `VARINT`.
    """
    while at < end:
        tag, at = _varint(data, at)
        wire_type = tag & 7
        if wire_type == LENGTH_DELIMITED:
            length, at = _varint(data, at)
            if at + length > end:
                raise ValueError("a field is longer than the message around it")
            yield tag >> 3, at, at + length
            at += length
        elif wire_type == VARINT:
            begin = at
            _, at = _varint(data, at)
            if VARINT in further:
                yield tag >> 3, begin, at
        elif wire_type in FIXED_BYTES:
            at += FIXED_BYTES[wire_type]
        else:
            raise ValueError(f"wire type {wire_type} at byte {at}")


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """Return a number of the variable-length encoding, and the byte behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 - the highest bit says that more follows
            return value, at
