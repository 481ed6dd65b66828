"""What a safetensors file holds, read from its header alone and checked against its size.

Source: huggingface/safetensors README.md, "Format": 8 bytes of little-endian header size, a JSON
header, then the tensors' bytes without holes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge_backend.errors import ModelError
from ge_backend.model.files.pointer import refuse_pointer
from ge_backend.tensors import Shape

__all__ = ["StoredTensor", "read_header"]

# The library's own limit.
MAX_HEADER_BYTES = 100_000_000
ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a file; its dtype under the format's own name, such as `BF16`."""

    dtype: str
    shape: Shape
    nbytes: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name, without reading them.

    Raises:
        ModelError: the file cannot be read, is no safetensors file, is cut short, or its header
            contradicts itself.
    """
    refuse_pointer(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(MAX_HEADER_BYTES, size - 8):
                raise ModelError(
                    f"{path}: its header takes {length} bytes, the file has {size}; it is cut "
                    "short or no safetensors file; copy it again"
                )
            header = json.loads(file.read(length))
            spans = {
                name: _span(path, name, entry)
                for name, entry in header.items()
                if name != "__metadata__"
            }
    except OSError as error:
        kind = "the link cannot be followed" if path.is_symlink() else "cannot be read"
        raise ModelError(f"{path}: {kind}: {error.strerror}") from error
    except (struct.error, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path}: not a safetensors file: {error}") from error
    end = 0
    for name, (begin, stop, _) in sorted(spans.items(), key=lambda item: item[1][:2]):
        if begin != end:
            raise ModelError(f"{path}: tensor {name!r} begins at byte {begin}, expected {end}")
        end = stop
    if 8 + length + end != size:
        raise ModelError(
            f"{path}: its tensors end at byte {8 + length + end}, the file has {size} bytes; it is "
            "cut short or damaged; copy it again"
        )
    return {name: tensor for name, (_, _, tensor) in spans.items()}


def _span(path: Path, name: str, entry: Mapping[str, Any]) -> tuple[int, int, StoredTensor]:
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if dtype not in ITEM_BYTES or not _sizes(shape) or not _sizes(offsets, 2):
        raise ModelError(
            f"{path}: tensor {name!r} has dtype {dtype!r}, shape {shape!r}, offsets {offsets!r}; "
            f"known types are {', '.join(ITEM_BYTES)}"
        )
    sizes = tuple(entry["shape"])
    tensor = StoredTensor(
        dtype=str(dtype), shape=sizes, nbytes=math.prod(sizes) * ITEM_BYTES[str(dtype)]
    )
    begin, end = entry["data_offsets"]
    if end - begin != tensor.nbytes:
        raise ModelError(
            f"{path}: tensor {name!r} of {dtype} {shape} takes {tensor.nbytes} bytes, its offsets "
            f"say {end - begin}"
        )
    return begin, end, tensor


def _sizes(value: object, count: int | None = None) -> bool:
    return (
        isinstance(value, list)
        and count in (None, len(value))
        and all(type(item) is int and item >= 0 for item in value)
    )
