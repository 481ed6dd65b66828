"""The grid of a model: each bucket with its cost and the memory that its tensors take."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ge_backend.buckets.grid import Bucket, BucketGrid
from ge_backend.cli.model.demand import tensor_bytes
from ge_backend.cli.report.table import table
from ge_backend.layout.layout import Layout

__all__ = ["BucketLine", "bucket_lines", "grid_json", "grid_text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketLine:
    """One bucket.

    Attributes:
        cost_ns: of one run; None where it was not measured.
        tensor_bytes: of its inputs and outputs; None where the graph alone, or the request, knows.
    """

    bucket: Bucket
    elements: int
    cost_ns: float | None
    tensor_bytes: int | None


def bucket_lines(
    grid: BucketGrid, layout: Layout, costs: Mapping[Bucket, float]
) -> list[BucketLine]:
    """Return a line per bucket, ascending."""
    return [
        BucketLine(
            bucket=bucket,
            elements=math.prod(bucket),
            cost_ns=costs.get(bucket),
            tensor_bytes=tensor_bytes(layout, bucket),
        )
        for bucket in grid.entries
    ]


def grid_text(grid: BucketGrid, lines: list[BucketLine]) -> list[str]:
    """Return the grid for a person: how it came about, its buckets, and what they sum up to."""
    rows = [
        (*map(str, line.bucket), str(line.elements), _ms(line.cost_ns), _mib(line.tensor_bytes))
        for line in lines
    ]
    header = (*grid.names, "elements", "cost ms", "tensors MiB")
    return [*grid.describe(), *table(header, rows), _total(lines)]


def _total(lines: list[BucketLine]) -> str:
    costs = [line.cost_ns for line in lines if line.cost_ns is not None]
    known = [line.tensor_bytes for line in lines if line.tensor_bytes is not None]
    parts = [f"total: {len(lines)} buckets, {len(costs)} measured"]
    if costs:
        parts.append(f"{_ms(sum(costs))} ms for one run of each of those")
    if known:
        parts.append(f"tensors {_mib(sum(known))} MiB, of the largest {_mib(max(known))} MiB")
    return ", ".join(parts)


def grid_json(grid: BucketGrid, lines: list[BucketLine]) -> str:
    """Return the same as one JSON object."""
    return json.dumps(
        {
            "axes": {axis.name: axis.values for axis in grid.axes},
            "buckets": [asdict(line) for line in lines],
        }
    )


def _ms(cost_ns: float | None) -> str:
    return "-" if cost_ns is None else f"{cost_ns / 1e6:.3f}"


def _mib(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 2**20:.3f}"
