"""The grid of buckets: which static shapes there are, and which of them covers a shape.

A bucket is (rows, one size per ragged axis). A grid is the product of its axes, or a list of
entries; a budget takes out what is too large; `prune` keeps the few that traffic needs most.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ge_backend.errors import ConfigError
from ge_backend.shapes.buckets.axis import ROWS, Axis, listed_axis
from ge_backend.shapes.buckets.bucket_file import read_buckets

__all__ = [
    "Bucket",
    "BucketGrid",
    "covers",
    "file_grid",
    "label",
    "largest_buckets",
    "listed_grid",
    "padded_elements",
    "product_grid",
]

Bucket = tuple[int, ...]  # rows, then one size per ragged axis

MAX_BUCKETS = 100_000


def covers(bucket: Bucket, shape: Sequence[int]) -> bool:
    """Return whether a bucket is at least the shape in every dimension."""
    return all(have >= need for have, need in zip(bucket, shape, strict=True))


def largest_buckets(entries: Sequence[Bucket]) -> list[Bucket]:
    """Return the buckets that no other covers: together they need the most of everything."""
    return [
        bucket
        for bucket in entries
        if not any(other != bucket and covers(other, bucket) for other in entries)
    ]


def padded_elements(bucket: Bucket) -> float:
    """Return the elements of a bucket: the cost where nothing was measured."""
    return float(math.prod(bucket))


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketGrid:
    """The buckets of a model.

    Attributes:
        axes: rows first; what each one's sizes are and how they were made.
        entries: the buckets, ascending, each once; the axes' product or a part of it.
    """

    axes: tuple[Axis, ...]
    entries: tuple[Bucket, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The axes' names, rows first."""
        return tuple(axis.name for axis in self.axes)

    def within(self, max_elements: int) -> BucketGrid:
        """Return the grid without buckets of more than `max_elements`, rows times all sizes.

        Every combination of sizes must keep a bucket with some number of rows: larger batches are
        split by rows, a single row cannot be.

        Raises:
            ConfigError: some size has no bucket left; names the smallest one it had.
        """
        kept = tuple(entry for entry in self.entries if math.prod(entry) <= max_elements)
        covered = {entry[1:] for entry in kept}
        for entry in self.entries:
            if entry[1:] in covered:
                continue
            covered.add(entry[1:])
            if not any(covers(other, (1, *entry[1:])) for other in kept):
                raise ConfigError(
                    f"bucket {label(entry)} has {math.prod(entry)} elements, the budget is "
                    f"{max_elements}, and no bucket within it takes rows of that size; "
                    "raise the budget, lower the axis' maximum, or add a bucket with fewer rows"
                )
        return replace(self, entries=kept)

    def describe(self) -> list[str]:
        """Return one line per axis and one for the whole grid."""
        count = len(self.entries)
        largest = max(self.entries, key=math.prod)
        whole = math.prod(len(axis.values) for axis in self.axes)
        of = f" of {whole}" if whole != count else ""
        total = f"{count}{of} buckets ({' x '.join(self.names)}), the largest {label(largest)}"
        return [*(axis.describe() for axis in self.axes), total]


def label(bucket: Bucket) -> str:
    """Return `8x64`."""
    return "x".join(map(str, bucket))


def product_grid(axes: Iterable[Axis]) -> BucketGrid:
    """Return the full product of the axes.

    Raises:
        ConfigError: the product is larger than any device can hold.
    """
    axes = tuple(axes)
    count = math.prod(len(axis.values) for axis in axes)
    if count > MAX_BUCKETS:
        counts = " x ".join(f"{len(axis.values)} {axis.name}" for axis in axes)
        raise ConfigError(
            f"{counts} make {count} buckets, expected at most {MAX_BUCKETS}; take larger steps"
        )
    return BucketGrid(axes=axes, entries=tuple(itertools.product(*(axis.values for axis in axes))))


def listed_grid(names: Sequence[str], entries: Iterable[Bucket]) -> BucketGrid:
    """Return a grid of exactly these buckets; `names` are the axes' names, rows first.

    Raises:
        ConfigError: there is no entry, one has the wrong number of places, or a size below 1.
    """
    ordered = tuple(sorted(set(entries)))
    for entry in ordered:
        if len(entry) != len(names):
            raise ConfigError(
                f"bucket {entry} has {len(entry)} places, expected {', '.join(names)}"
            )
    columns = zip(*ordered, strict=True) if ordered else [()] * len(names)
    axes = [listed_axis(name, sizes) for name, sizes in zip(names, columns, strict=True)]
    return BucketGrid(axes=tuple(axes), entries=ordered)


def file_grid(path: Path, ragged: Sequence[str]) -> BucketGrid:
    """Return the grid that a bucket file lists: rows, then one size per ragged axis.

    Raises:
        ConfigError: the file cannot be read, or a line cannot be used.
    """
    names = (ROWS, *ragged)
    return listed_grid(names, read_buckets(path, least=(1,) * len(names)))
