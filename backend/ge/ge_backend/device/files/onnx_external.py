"""Which files hold the weights of an ONNX model that are not in the model file itself.

Read from the file's own encoding, so that no library has to be there: only the few fields on the
way to `TensorProto.external_data` are looked into, all else is skipped over.
Source: onnx/onnx.proto for the field numbers, the protocol buffers' encoding page for the rest.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

from ge_backend.errors import ModelError

__all__ = ["external_data", "fields", "mapped"]

# Message -> field number -> the message in it: the way to every tensor, in subgraphs too.
FIELDS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
KEY, VALUE = 1, 2
LENGTH_DELIMITED = 2
FIXED_BYTES = {1: 8, 5: 4}


def external_data(model: Path) -> list[tuple[str, Path]]:
    """Return the external files of a model: as it names them, and where they are.

    Raises:
        ModelError: the file is no ONNX model, or one that it names is missing.
    """
    locations = sorted(_locations(model))
    for location in locations:
        if not (model.parent / location).is_file():
            raise ModelError(f"{model}: its weights are in {location!r}, which is not beside it")
    return [(location, model.parent / location) for location in locations]


def _locations(model: Path) -> set[str]:
    with mapped(model) as data:
        entries = _entries(data, "model", 0, len(data))
        return {text.decode() for key, text in entries if key == b"location"}


@contextlib.contextmanager
def mapped(model: Path) -> Iterator[mmap.mmap]:
    """Give the bytes of a model; what goes wrong with them is a ModelError."""
    try:
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
    except (OSError, ValueError, IndexError) as error:
        raise ModelError(f"{model}: not an ONNX model that can be read: {error}") from error


def _entries(data: mmap.mmap, message: str, at: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value) pairs of all external data in a message."""
    if message == "entry":
        pair = {number: data[begin:stop] for number, begin, stop in fields(data, at, end)}
        yield pair.get(KEY, b""), pair.get(VALUE, b"")
        return
    inner = FIELDS[message]
    for number, begin, stop in fields(data, at, end):
        if number in inner:
            yield from _entries(data, inner[number], begin, stop)


def fields(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number, begin, end) of each length-delimited field of a message."""
    while at < end:
        tag, at = _varint(data, at)
        wire_type = tag & 7
        if wire_type == LENGTH_DELIMITED:
            length, at = _varint(data, at)
            if at + length > end:
                raise ValueError("a field is longer than the message around it")
            yield tag >> 3, at, at + length
            at += length
        elif wire_type == 0:
            _, at = _varint(data, at)
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
