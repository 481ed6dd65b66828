"""Numbers of a JSON schema that its compiler cannot keep, as it holds each in FP64.

It would ask for another number than the schema: of a `const` 1234567890123456789 for
1234567890123456768. Source: llguidance 1.9.1, run by findings/llguidance_large_numbers.sh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["lost_number", "with_kept_bounds"]

EXACT = 2**53  # up to here FP64 has all integers
# Below 2**63 FP64 has every multiple of a half of this, and the compiler's sums and its shortest
# decimals are off by less than a half.
STEP = 2048
BOUNDS = {"maximum": 1, "exclusiveMaximum": 1, "minimum": -1, "exclusiveMinimum": -1}


def with_kept_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose large bounds are narrower, so that no number beyond them is allowed.

    They are so by up to 3072, and none is beyond 64 bits.
    """
    narrower = {
        key: side * _narrower(side * schema[key])
        for key, side in BOUNDS.items()
        if isinstance(schema.get(key), (int, float)) and side * schema[key] > EXACT
    }
    return {**schema, **narrower}


def lost_number(schema: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the keyword of a schema that has an integer which FP64 lacks, and that; None: none."""
    values = ((key, schema[key]) for key in ("const", "enum", "multipleOf") if key in schema)
    found = ((key, number) for key, value in values for number in _integers(value))
    return next((each for each in found if abs(each[1]) > EXACT and not _is_kept(each[1])), None)


def _narrower(bound: float) -> int:
    return (int(min(bound, 2**63)) - STEP // 2 - 1) // STEP * STEP


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _integers(each)
    elif type(value) is int:
        yield value


def _is_kept(number: int) -> bool:
    try:
        return int(float(number)) == number
    except OverflowError:
        return False
