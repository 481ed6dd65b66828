"""Cutting real rows and real lengths out of a sub-batch's outputs: the inverse of `stage`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise

from ge_backend.device.base import ROW_ERRORS
from ge_backend.errors import GraphFailed, InvalidRequest
from ge_backend.model.layout.layout import Layout, OutputLayout
from ge_backend.model.layout.output_rows import lacks_rows
from ge_backend.serving.batching.concatenate import scatter
from ge_backend.serving.batching.lengths import concatenated, cut_to_lengths, row_lengths
from ge_backend.serving.batching.plan import RowSpan, SubBatch
from ge_backend.serving.batching.request import Request
from ge_backend.serving.batching.stage import sources
from ge_backend.tensors import Array, agree

__all__ = ["Piece", "join", "refused_requests", "split"]

# One span's outputs, by name.
Piece = tuple[RowSpan, dict[str, Array]]


def split(
    sub_batch: SubBatch,
    requests: Sequence[Request],
    layout: Layout,
    outputs: Mapping[str, Array],
    hidden: Collection[str] = (),
) -> list[Piece]:
    """Return each span's outputs without padding: views of the arena, valid as long as it is.

    Args:
        sub_batch: what has run.
        requests: whose rows these are.
        layout: of the graph.
        outputs: what it returned.
        hidden: outputs that have stayed on the device.

    Raises:
        GraphFailed: an output is missing, or its dtype or shape is not what was promised.
    """
    pieces: list[Piece] = [(span, {}) for span in sub_batch.spans]
    lengths_outputs = {name for output in layout.outputs for name in output.lengths if name}
    lengths = {name: row_lengths(name, outputs, batched=layout.batched) for name in lengths_outputs}
    for output in layout.outputs:
        if output.name in hidden:
            continue
        array = outputs.get(output.name)
        if array is None:
            raise GraphFailed(f"the graph returned no output {output.name!r}")
        if output.source:
            given = sources(output.source, sub_batch, requests)
            parts = scatter(output, array, given, batched=layout.batched)
        else:
            _check(output, array, sub_batch, layout)
            parts = _rows(output, array, sub_batch, requests, layout)
            if output.lengths:
                parts = cut_to_lengths(output, parts, lengths, batched=layout.batched)
        for (_, piece), part in zip(pieces, parts, strict=True):
            piece[output.name] = part
    return pieces


def refused_requests(
    sub_batch: SubBatch, outputs: Mapping[str, Array]
) -> dict[int, InvalidRequest]:
    """Return the requests of which the graph refused a row, by position, and why: the first row."""
    refused: dict[int, InvalidRequest] = {}
    reasons = outputs.get(ROW_ERRORS)
    if reasons is None:
        return refused
    at = 0
    for span in sub_batch.spans:
        for row, reason in enumerate(reasons[at : at + span.count], start=span.first):
            if reason and span.request not in refused:
                refused[span.request] = InvalidRequest(f"row {row}: {reason.decode()}")
        at += span.count
    return refused


def join(pieces: Sequence[Piece], layout: Layout) -> dict[str, Array]:
    """Return one request's outputs from its spans, which may have run in several sub-batches."""
    if len(pieces) == 1:
        return pieces[0][1]
    ordered = sorted(pieces, key=lambda piece: piece[0].first)
    return {
        output.name: concatenated([outputs[output.name] for _, outputs in ordered], output.fill)
        for output in layout.outputs
        if output.name in ordered[0][1]
    }


def _rows(
    output: OutputLayout,
    array: Array,
    sub_batch: SubBatch,
    requests: Sequence[Request],
    layout: Layout,
) -> list[Array]:
    """Return an output's part for each span: its rows, cut to the request's own sizes.

    One value without dimensions, which the host does not know, is `[1]`.
    """
    if not array.ndim:
        return [array.reshape(1)]
    padded = len(layout.axes)
    cut = [axis if axis < padded else -1 for axis in output.axes]
    while cut and cut[-1] < 0:
        cut.pop()
    if layout.batched and not cut:
        ends = accumulate([span.count for span in sub_batch.spans], initial=0)
        return [array[at:end] for at, end in pairwise(ends)]
    parts: list[Array] = []
    at = 0
    for span in sub_batch.spans:
        end = at + span.count
        sizes = requests[span.request].sizes
        corner = [slice(sizes[axis] if axis >= 0 else None) for axis in cut]
        parts.append(array[(slice(at, end), *corner) if layout.batched else tuple(corner)])
        at = end
    return parts


def _check(output: OutputLayout, array: Array, sub_batch: SubBatch, layout: Layout) -> None:
    """See that an output has its dtype, its rows, and the sizes that are fixed or were padded."""
    if array.dtype != output.dtype.numpy:
        raise GraphFailed(
            f"the graph returned {array.dtype} for output {output.name!r}; expected "
            f"{output.dtype.name}"
        )
    row = output.row_shape(sub_batch.bucket[1:] + (-1,) * len(layout.equal_axes))
    if not layout.batched and (row, array.shape) == ((1,), ()):
        return
    expected = sub_batch.bucket[:1] + row if layout.batched else row
    if expected != array.shape and not agree(expected, array.shape):
        lack = lacks_rows(output, sub_batch.bucket[0], array.shape) if layout.batched else ""
        raise GraphFailed(
            f"the graph returned shape {list(array.shape)} for output {output.name!r}; expected "
            f"{list(expected)}, where -1 may be any size{lack and f'; {lack}'}"
        )
