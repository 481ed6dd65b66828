"""What sizes real traffic has, in bounded memory: counts by value, coarser where there are many.

A value is kept with a number of leading binary digits and rounded up: all of them at first, fewer
each time the bins become too many. Coarser grids are subsets of finer ones, so the result does not
depend on the order of values, and histograms can be merged.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ge_backend.errors import ConfigError

__all__ = [
    "DAMAGED",
    "SizeHistogram",
    "dump_histograms",
    "independent_shapes",
    "load_histograms",
    "rounded_up",
]

VERSION = 1
ALL_DIGITS = 64
# One digit a value leaves a bin per power of two: 32 of them and zero.
FEWEST_BINS = 64
DEFAULT_BINS = 512
# What reading JSON and taking numbers out of it raises where it was changed by hand.
DAMAGED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


@dataclass(slots=True)
class SizeHistogram:
    """Counts by value; never more than `max_bins` of them. Not safe for several threads.

    Attributes:
        max_bins: at least 64.
        digits: leading binary digits that a value keeps; 64 is exact.
        largest: the largest value seen, exact.
    """

    max_bins: int = DEFAULT_BINS
    digits: int = ALL_DIGITS
    largest: int = 0
    _counts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_bins < FEWEST_BINS:
            raise ConfigError(f"max_bins is {self.max_bins}, expected at least {FEWEST_BINS}")

    @property
    def total(self) -> int:
        """How many values were added."""
        return sum(self._counts.values())

    def add(self, value: int, count: int = 1) -> None:
        """Count a value, from 0 to 2**31 - 1."""
        self.largest = max(self.largest, value)
        kept = rounded_up(value, self.digits) if self.digits < ALL_DIGITS else value
        self._counts[kept] = self._counts.get(kept, 0) + count
        while len(self._counts) > self.max_bins and self.digits > 1:
            self._coarsen(min(self.digits, max(self._counts).bit_length()) - 1)

    def merge(self, other: SizeHistogram) -> None:
        """Add all that another histogram counted; as if its values had been added here."""
        largest = max(self.largest, other.largest)
        if other.digits < self.digits:
            self._coarsen(other.digits)
        for value, count in other._counts.items():
            self.add(value, count)
        self.largest = largest  # values that were rounded up may be above it

    def points(self) -> list[tuple[int, int]]:
        """Return (value, count) ascending; a value stands for itself and those just below it."""
        merged: dict[int, int] = {}
        for value, count in sorted(self._counts.items()):
            seen = min(value, self.largest)
            merged[seen] = merged.get(seen, 0) + count
        return list(merged.items())

    def _coarsen(self, digits: int) -> None:
        self.digits = digits
        counts, self._counts = self._counts, {}
        for value, count in counts.items():
            kept = rounded_up(value, digits)
            self._counts[kept] = self._counts.get(kept, 0) + count


def independent_shapes(histograms: Sequence[SizeHistogram]) -> dict[tuple[int, ...], float]:
    """Return weights of shapes as if the axes did not depend on each other; they sum to one.

    Each axis is coarsened to powers of two first, so that there are few shapes.
    """
    axes = []
    for histogram in histograms:
        copy = SizeHistogram(digits=1)
        copy.merge(histogram)
        axes.append([(value, count / max(copy.total, 1)) for value, count in copy.points()])
    shapes: dict[tuple[int, ...], float] = {}
    for combination in itertools.product(*axes):
        weight = 1.0
        for _, share in combination:
            weight *= share
        shapes[tuple(value for value, _ in combination)] = weight
    return shapes


def dump_histograms(histograms: Mapping[str, SizeHistogram]) -> str:
    """Return the histograms of a model, by axis, as JSON text."""
    axes = {
        name: {
            "max_bins": histogram.max_bins,
            "digits": histogram.digits,
            "largest": histogram.largest,
            "counts": sorted(histogram._counts.items()),  # noqa: SLF001 - its inverse is below
        }
        for name, histogram in histograms.items()
    }
    return json.dumps({"version": VERSION, "axes": axes}, separators=(",", ":"))


def load_histograms(text: str, name: str) -> dict[str, SizeHistogram]:
    """Return what `dump_histograms` wrote; `name` is for messages.

    Raises:
        ConfigError: the text is something else, or of another version.
    """
    try:
        document: Any = json.loads(text)
        version = document["version"]
        if version == VERSION:
            return {axis: _load(fields) for axis, fields in document["axes"].items()}
    except DAMAGED as error:
        raise ConfigError(f"{name} is no traffic histogram: {error!r}") from error
    raise ConfigError(f"{name} has version {version!r}, expected {VERSION}; record traffic anew")


def _load(fields: Mapping[str, Any]) -> SizeHistogram:
    counts = {int(value): int(count) for value, count in fields["counts"]}
    max_bins, digits, largest = (int(fields[key]) for key in ("max_bins", "digits", "largest"))
    if min([digits - 1, largest, *counts, *counts.values()]) < 0 or len(counts) > max_bins:
        raise ValueError("a count, a size or a limit is out of range")
    return SizeHistogram(max_bins=max_bins, digits=digits, largest=largest, _counts=counts)


def rounded_up(value: int, digits: int) -> int:
    """Return the value with that many leading binary digits, rounded up."""
    shift = value.bit_length() - digits
    return value if shift <= 0 else -(-value >> shift) << shift
