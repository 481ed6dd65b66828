"""Sizes of requests from a file: what traffic was, as others wrote it down.

    17                                        # the size of one row, of a model with one ragged axis
    {"sizes": {"sequence": 17}}               # the same, with the axis' name
    {"rows": 4, "sizes": {"sequence": 17}}    # a request of four such rows

One request a line, in any order; both forms may be mixed; `#` begins a comment, except in JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ge_backend.errors import ConfigError
from ge_backend.shapes.traffic.histogram import SizeHistogram

__all__ = ["parse_trace", "read_trace"]

MAX_SIZE = 2**31 - 1
_SIZE = re.compile(r"[0-9]{1,18}")
_Line = tuple[int, tuple[int, ...]]  # rows, then one size per axis


def read_trace(path: Path, axes: Sequence[str]) -> dict[str, SizeHistogram]:
    """Return the sizes that a text file in UTF-8 lists, by ragged axis.

    It is read line by line, so it may be long.

    Raises:
        ConfigError: the file cannot be read, or a line cannot be used; names file, line and text.
    """
    try:
        with path.open(encoding="utf-8-sig") as lines:
            return parse_trace(lines, str(path), axes)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"trace {path} cannot be read: {error}") from error


def parse_trace(lines: Iterable[str], name: str, axes: Sequence[str]) -> dict[str, SizeHistogram]:
    """Return the sizes of a trace's lines, as `read_trace` does; `name` is for messages."""
    histograms = {axis: SizeHistogram() for axis in axes}
    empty = True
    for number, line in enumerate(lines, start=1):
        stated = line.strip()
        if not stated or stated.startswith("#"):
            continue
        try:
            rows, sizes = _request(stated, axes)
        except ConfigError as error:
            shown = repr(stated if len(stated) <= 80 else f"{stated[:80]}…")  # noqa: PLR2004
            raise ConfigError(f"{name}, line {number}: {shown}: {error}") from error
        for histogram, size in zip(histograms.values(), sizes, strict=True):
            histogram.add(size, rows)
        empty = False
    if empty:
        raise ConfigError(f"{name} has no requests; expected lines such as {_example(axes)}")
    return histograms


def _request(text: str, axes: Sequence[str]) -> _Line:
    if text.startswith("{"):
        return _object(text, axes)
    stated = text.partition("#")[0].strip()
    if len(axes) != 1:
        raise ConfigError(f"this model has the ragged axes {', '.join(axes)}; {_expected(axes)}")
    if not _SIZE.fullmatch(stated):
        raise ConfigError(_expected(axes))
    return 1, (_count("the size", int(stated), least=0, axes=axes),)


def _object(text: str, axes: Sequence[str]) -> _Line:
    try:
        fields: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"no JSON ({error}); {_expected(axes)}") from error
    sizes = fields.get("sizes")
    if fields.keys() - {"rows", "sizes"} or not isinstance(sizes, dict) or set(sizes) != set(axes):
        raise ConfigError(_expected(axes))
    rows = _count("rows", fields.get("rows", 1), least=1, axes=axes)
    return rows, tuple(_count(repr(axis), sizes[axis], least=0, axes=axes) for axis in axes)


def _count(what: str, value: Any, *, least: int, axes: Sequence[str]) -> int:
    if type(value) is not int or not least <= value <= MAX_SIZE:
        raise ConfigError(
            f"{what} is {value!r}, expected a whole number {least} to {MAX_SIZE}, "
            f"such as {_example(axes)}"
        )
    return value


def _expected(axes: Sequence[str]) -> str:
    return f"expected {'a size or ' if len(axes) == 1 else ''}a request such as {_example(axes)}"


def _example(axes: Sequence[str]) -> str:
    return json.dumps({"rows": 1, "sizes": dict.fromkeys(axes, 17)})
