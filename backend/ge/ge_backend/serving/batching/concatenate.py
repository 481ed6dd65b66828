"""Ragged inputs concatenated flat, and what goes with them, as Triton's C++ backends do it.

    requests              [1, 2]  [1, 4]  [2, 3]        a batch is one run, in arrival order
    ragged input          [2 + 4 + 6]                   every element of every request, flat
    batch input           [2, 4, 6] or [2, 6, 12] …     says where each request lies in it
    other inputs          [1 + 1 + 2, …]                joined along the batch dimension
    batch output          cut into pieces with the shapes of a source input

Element counts are per request, its own batch included; only item shapes are per row.
Source: triton-inference-server/backend src/backend_input_collector.cc (BatchInputShape,
SetElementCount, SetAccumulatedElementCount, SetBatchItemShape) and
src/backend_output_responder.cc (ProcessBatchOutput).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from ge_backend.errors import GraphFailed
from ge_backend.model.layout.layout import InputLayout, OutputLayout
from ge_backend.serving.batching.plan import BatchPlan, RowSpan, SubBatch
from ge_backend.serving.batching.request import Request
from ge_backend.shapes.buckets.costs import CostModel
from ge_backend.tensors import Array, Shape

__all__ = ["alone", "as_it_came", "batch_shape", "each_alone", "one_run", "scatter", "write_batch"]


def one_run(requests: Sequence[Request], costs: CostModel, *, batched: bool) -> BatchPlan:
    """Return the plan that runs a batch as it came; only requests whose keys differ are apart.

    Without a batch dimension there is nothing to join, so each request is a run. A run has exactly
    the rows that came: nothing is padded, and what goes with them says how many there are.
    """
    groups: dict[object, list[RowSpan]] = {}
    for position, request in enumerate(requests):
        key = request.key if batched else position
        groups.setdefault(key, []).append(RowSpan(position, 0, request.rows))
    return BatchPlan(sub_batches=tuple(as_it_came(tuple(s), costs) for s in groups.values()))


def each_alone(requests: Sequence[Request], costs: CostModel) -> BatchPlan:
    """Return the plan that runs each request by itself, all its rows together and no others."""
    return BatchPlan(
        sub_batches=tuple(
            alone(RowSpan(position, 0, request.rows), request, costs)
            for position, request in enumerate(requests)
        )
    )


def alone(span: RowSpan, request: Request, costs: CostModel) -> SubBatch:
    """Return a run of a request's rows as they are; more than any bucket has cost as many."""
    cost_ns = costs.cost(min(span.count, costs.steps[-1]), request.sizes)
    bucket = (span.count, *request.sizes)
    covered = costs.covers(request.sizes)
    return SubBatch(spans=(span,), bucket=bucket, rows=span.count, cost_ns=cost_ns, planned=covered)


def as_it_came(spans: tuple[RowSpan, ...], costs: CostModel) -> SubBatch:
    """Return a run of exactly these rows, since a bucket's further ones would have no elements."""
    rows = sum(span.count for span in spans)
    cost_ns = costs.cost(rows, ())
    return SubBatch(spans=spans, bucket=(rows,), rows=rows, cost_ns=cost_ns, planned=True)


def batch_shape(item: InputLayout, sources: Sequence[Array]) -> Shape:
    """Return the shape of an input that is written for the whole batch at once.

    Args:
        item: a flat input, or one that describes the batch.
        sources: the tensors of the input's source, one per request, in order.
    """
    kind = item.made
    if not kind:
        return (sum(array.size for array in sources),)
    if kind == "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO":
        return (len(sources) + 1,)
    if kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE":
        return (max(array.size for array in sources),)
    rank = sources[0].ndim - 1
    rows = sum(array.shape[0] for array in sources)
    if kind == "BATCH_ITEM_SHAPE":
        return (rows, rank)
    return (rows * rank,) if kind == "BATCH_ITEM_SHAPE_FLATTEN" else (len(sources),)


def write_batch(target: Array, item: InputLayout, sources: Sequence[Array]) -> None:
    """Write such an input; `target` has the shape that `batch_shape` returned."""
    if not item.made:
        np.concatenate([array.reshape(-1) for array in sources], out=target)
    else:
        target.reshape(-1)[...] = _described(item.made, target.size, sources)


def _described(kind: str, size: int, sources: Sequence[Array]) -> list[int]:
    counts = [array.size for array in sources]
    if kind == "BATCH_ELEMENT_COUNT":
        return counts
    if kind == "BATCH_ACCUMULATED_ELEMENT_COUNT":
        return list(accumulate(counts))
    if kind == "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO":
        return list(accumulate(counts, initial=0))
    if kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE":
        return [0] * size  # only the shape says something
    return [dim for array in sources for _ in range(array.shape[0]) for dim in array.shape[1:]]


def scatter(
    output: OutputLayout, array: Array, sources: Sequence[Array], *, batched: bool
) -> list[Array]:
    """Return each request's part of an output: views, in order.

    A part has the output's dims, its free ones as in the request's source tensor.

    Raises:
        GraphFailed: the parts together are not the output, or its dtype is not what was promised.
    """
    shapes = [_part_shape(output, source, batched=batched) for source in sources]
    ends = list(accumulate((math.prod(shape) for shape in shapes), initial=0))
    if array.dtype != output.dtype.numpy or array.size != ends[-1]:
        raise GraphFailed(
            f"the graph returned {array.size} elements of {array.dtype} for output "
            f"{output.name!r}; expected {ends[-1]} of {output.dtype.name}, so that each request "
            f"gets the shape of its {output.source!r}"
        )
    flat = array.reshape(-1)
    return [
        flat[end - math.prod(shape) : end].reshape(shape)
        for end, shape in zip(ends[1:], shapes, strict=True)
    ]


def _part_shape(output: OutputLayout, source: Array, *, batched: bool) -> Shape:
    dims = (-1, *output.dims) if batched else output.dims
    return tuple(source.shape[at] if dim < 0 else dim for at, dim in enumerate(dims))
