"""What an OpenVINO IR says that is needed without the engine: other names of its tensors.

Source: OpenVINO's documentation, "Intermediate Representation": a layer's `name`, a port's `names`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection
from pathlib import Path

from ge_backend.errors import ModelError

__all__ = ["ir_aliases", "ir_quantises"]

LAYER = re.compile(rb'<layer [^>]*?name="([^"]*)"')
QUANTISED = re.compile(rb'<layer [^>]*?type="FakeQuantize"')
NAMES = re.compile(rb'<port [^>]*?names="([^"]*)"')


def ir_aliases(path: Path, names: Collection[str]) -> frozenset[str]:
    """Return those of these names that a file has for a tensor beside its operator's own.

    Raises:
        ModelError: the file cannot be read.
    """
    text = _read(path)
    others = set(names) - set(map(_text, LAYER.findall(text)))
    if not others:
        return frozenset()
    found = (name for port in NAMES.findall(text) for name in _text(port).split(","))
    return frozenset(others.intersection(found))


def ir_quantises(path: Path) -> bool:
    """Return whether a file rounds activations to whole steps, which an engine makes INT8 of.

    Raises:
        ModelError: the file cannot be read.
    """
    return QUANTISED.search(_read(path)) is not None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def _text(value: bytes) -> str:
    return html.unescape(value.decode(errors="replace"))
