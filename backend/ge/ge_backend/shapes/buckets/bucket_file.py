"""Buckets from a file: one entry a line, each place a number, a list, or a range; never evaluated.

    # rows, length, blocks
    (1, 2048, 0)
    (1, [256, 512], [0, 4, 8])            # the product: six buckets
    ([64, 128], 1, range(512, 1024, 32))  # as Python's range: 1024 is not there

Stricter than the format's origin, which truncates 256.7 to 256, takes negative sizes and empty
lists, and skips a line that it cannot read: each of those costs a bucket, and nothing says so.
Here they are errors that name the line.

Source: vllm-project/vllm-gaudi@091bbadd vllm_gaudi/extension/bucketing/file_strategy.py; there too
a range has at most 10,000 elements.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from ge_backend.errors import ConfigError

__all__ = ["PAGED_LEAST", "parse_buckets", "read_buckets"]

MAX_ENTRIES = 10_000
MAX_SIZE = 2**31 - 1
# Rows and length from 1, context blocks from 0.
PAGED_LEAST = (1, 1, 0)
_RANGE_ARGUMENTS = (2, 3)

Reason = Callable[[tuple[int, ...]], str | None]


def read_buckets(
    path: Path, least: Sequence[int] = PAGED_LEAST, unusable: Reason | None = None
) -> list[tuple[int, ...]]:
    """Return a file's entries, ascending, each once.

    Args:
        path: a text file in UTF-8.
        least: the smallest number allowed in each place; its length is the number of places.
        unusable: why the reader cannot use an entry, None where it can. Such entries of a line go,
            as the corners of a product that nothing runs in; a line that has no other is refused.

    Raises:
        ConfigError: the file cannot be read, or a line cannot be used; names file, line and text.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"bucket file {path} cannot be read: {error}") from error
    return parse_buckets(text, str(path), least, unusable)


def parse_buckets(
    text: str, name: str, least: Sequence[int] = PAGED_LEAST, unusable: Reason | None = None
) -> list[tuple[int, ...]]:
    """Return the entries of a file's text, as `read_buckets` does; `name` is for messages."""
    entries: set[tuple[int, ...]] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        stated = line.partition("#")[0].strip()
        if not stated:
            continue
        try:
            places = _places(stated, least)
            total = len(entries) + math.prod(map(len, places))
            if total > MAX_ENTRIES:
                raise ConfigError(
                    f"brings the file to {total} buckets, expected at most {MAX_ENTRIES}"
                )
            made = list(itertools.product(*places))
            usable = [entry for entry in made if unusable is None or unusable(entry) is None]
            if unusable is not None and not usable:
                raise ConfigError(unusable(made[0]))
            entries.update(usable)
        except ConfigError as error:
            raise ConfigError(f"{name}, line {number}: {_shown(stated)}: {error}") from error
    if not entries:
        raise ConfigError(f"{name} has no entries; expected lines such as {_example(least)}")
    return sorted(entries)


def _places(text: str, least: Sequence[int]) -> list[Sequence[int]]:
    """Return the numbers of each place of one line."""
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ConfigError(f"expected one entry such as {_example(least)}") from error
    if not isinstance(node, ast.Tuple) or len(node.elts) != len(least):
        raise ConfigError(
            f"expected {len(least)} places such as {_example(least)}, one entry a line"
        )
    places = [_place(element) for element in node.elts]
    for position, (values, smallest) in enumerate(zip(places, least, strict=True), start=1):
        for value in values:
            if not smallest <= value <= MAX_SIZE:
                raise ConfigError(
                    f"place {position} is {value}, expected a whole number {smallest} to {MAX_SIZE}"
                )
    return places


def _place(node: ast.expr) -> Sequence[int]:
    """Return the numbers of one place: a number, a list of numbers, or a range."""
    if isinstance(node, ast.Call):
        return _range(node)
    values = [_number(n) for n in (node.elts if isinstance(node, ast.List) else [node])]
    if not values:
        raise ConfigError("an empty list makes no bucket; expected at least one number")
    return values


def _range(node: ast.Call) -> range:
    arguments = [_number(argument) for argument in node.args]
    named = isinstance(node.func, ast.Name) and node.func.id == "range" and not node.keywords
    if not named or len(arguments) not in _RANGE_ARGUMENTS or arguments[2:] == [0]:
        raise ConfigError("expected range(first, end) or range(first, end, step) with step not 0")
    values = range(*arguments)
    # A range too long for len() would raise OverflowError.
    if not values or abs(values[-1] - values[0]) // abs(values.step) >= MAX_ENTRIES:
        raise ConfigError(f"expected a range of 1 to {MAX_ENTRIES} numbers")
    return values


def _number(node: ast.expr) -> int:
    """Return a whole number; booleans, floats and texts are none."""
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        sign = -1 if isinstance(node.op, ast.USub) else 1
        node = node.operand
    if not isinstance(node, ast.Constant) or type(node.value) is not int:
        raise ConfigError("expected whole numbers, lists of them, or range(first, end, step)")
    return sign * node.value


def _example(least: Sequence[int]) -> str:
    examples = ("4", "[128, 256]", "range(16, 65, 16)", *["1"] * len(least))
    return f"({', '.join(examples[: len(least)])}{',' if len(least) == 1 else ''})"


def _shown(text: str, most: int = 80) -> str:
    return repr(text if len(text) <= most else text[:most] + "…")
