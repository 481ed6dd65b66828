"""Outputs whose rows have real sizes of their own, which another output of the graph tells.

A tokenizer makes as many tokens as a text has, a speech encoder fewer frames than it was given: no
input says how many. The graph pads the rows of a run to one size, and tells each row's real one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ge_backend.errors import GraphFailed
from ge_backend.model.layout.layout import OutputLayout
from ge_backend.tensors import Array, Shape

__all__ = ["concatenated", "cut_to_lengths", "row_lengths"]


def row_lengths(name: str, outputs: Mapping[str, Array], *, batched: bool) -> Array:
    """Return each row's real size as integers `[rows]`, from the output that tells it.

    Args:
        name: an output of one whole number per row, `[rows]` or `[rows, 1]`, or a mask
            `[rows, size]`, where what lies behind the last place that is not 0 is padding.
        outputs: what the graph returned.
        batched: tensors begin with a batch dimension; else there is one row.

    Raises:
        GraphFailed: it is missing, or neither of the two.
    """
    array = outputs.get(name)
    if array is None:
        raise GraphFailed(f"the graph returned no output {name!r}, which tells the rows' sizes")
    lines = array if batched else array[np.newaxis]
    if lines.dtype.kind not in "iub" or lines.ndim not in (1, 2):
        raise GraphFailed(
            f"the graph returned {array.dtype} {list(array.shape)} for output {name!r}; expected "
            "one whole number per row, or a mask of rows by places"
        )
    if lines.ndim == 1 or lines.shape[1] == 1:  # a mask of one place holds its own size
        return lines.reshape(-1).astype(np.int64)
    places = np.arange(1, lines.shape[1] + 1)
    ends: Array = ((lines != 0) * places).max(axis=1, initial=0)
    return ends


def cut_to_lengths(
    output: OutputLayout, parts: Sequence[Array], lengths: Mapping[str, Array], *, batched: bool
) -> list[Array]:
    """Return each part of an output cut to its longest row, and the fill behind shorter rows.

    Args:
        output: the output that the parts are rows of.
        parts: consecutive rows, from the first on.
        lengths: what `row_lengths` returned for every output that tells this one's sizes.
        batched: parts begin with a batch dimension; else each is one row.

    Raises:
        GraphFailed: a row is said to be longer than the output is, or shorter than nothing.
    """
    with_lengths = [(dim, name) for dim, name in enumerate(output.lengths, start=1) if name]
    # Numbers of Python's, once: of a few rows each, numpy takes many times as long.
    known = {name: lengths[name].tolist() for _, name in with_lengths}
    cut: list[Array] = []
    at = 0
    for part in parts:
        rows = part if batched else part[np.newaxis]
        end = at + len(rows)
        for dim, name in with_lengths:
            own = known[name][at:end]
            _check(f"{name!r} says that rows of {output.name!r}", own, rows.shape, dim)
            rows = _cut(rows, dim, own, output.fill)
        at = end
        cut.append(rows if batched else rows[0])
    return cut


def _cut(rows: Array, dim: int, lengths: list[int], fill: float) -> Array:
    """Return rows cut to the longest one's length on a dimension; a view where all are equal."""
    longest = max(lengths)
    rows = rows[(slice(None),) * dim + (slice(longest),)]
    if min(lengths) == longest:
        return rows
    rows = rows.copy()
    behind = np.arange(longest) >= np.array(lengths)[:, np.newaxis]
    np.moveaxis(rows, dim, 1)[behind] = b"" if rows.dtype == object else fill
    return rows


def _check(who: str, lengths: list[int], shape: Shape, dim: int) -> None:
    rows, most = shape[0], shape[dim]
    if len(lengths) != rows or min(lengths) < 0 or max(lengths) > most:
        raise GraphFailed(
            f"output {who} have the sizes {lengths}; expected {rows} numbers from 0 to {most}"
        )


def concatenated(parts: Sequence[Array], fill: float) -> Array:
    """Return the rows of all parts as one array, shorter ones filled up to the longest."""
    if len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    rows = sum(len(part) for part in parts)
    dims = tuple(map(max, zip(*(part.shape[1:] for part in parts), strict=True)))
    blank = b"" if parts[0].dtype == object else fill
    whole = np.full((rows, *dims), blank, dtype=parts[0].dtype)
    at = 0
    for part in parts:
        corner = (slice(at, at + len(part)), *map(slice, part.shape[1:]))
        whole[corner] = part
        at += len(part)
    return whole
