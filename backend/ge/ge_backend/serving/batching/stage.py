"""Copying rows, padded, into the arena: each input is written once, where the executor reads it.

`stage` and `split` are inverses over one `SubBatch`: what is padded here is cut there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ge_backend.executor.protocol.arena import Arena, aligned
from ge_backend.executor.protocol.messages import (
    NO_SPILL,
    NORMAL,
    GatherInput,
    RetainOutput,
    Run,
    SpillRange,
    TensorRef,
)
from ge_backend.model.layout.layout import InputLayout, Layout
from ge_backend.serving.batching.concatenate import batch_shape, write_batch
from ge_backend.serving.batching.device_spans import gather_input
from ge_backend.serving.batching.device_tensor import BatchRetention
from ge_backend.serving.batching.plan import RowSpan, SubBatch
from ge_backend.serving.batching.request import REMEMBERED_SHAPES, Request
from ge_backend.tensors import Array, Shape, encode_bytes, float32_to_bf16

__all__ = ["SubBatchShapes", "deadline_of", "direct", "sources", "stage", "sub_batch_shapes"]

# An estimate may be infinite where nothing was measured; a day is as good.
MAX_NS = 86_400 * 10**9
NO_TEXTS: Mapping[str, bytes] = MappingProxyType({})


@dataclass(slots=True, kw_only=True)
class SubBatchShapes:
    """The shapes of one sub-batch's tensors, known before anything is copied; as `SubBatch`.

    Attributes:
        inputs: per input that will be given to the graph its padded shape.
        gathered: inputs that are made on the device.
        retained: outputs that stay there.
        unrequested: outputs that no request asks for.
        texts: BYTES inputs, already serialised, since only that tells their length.
        outputs: per output its shape where it can be told beforehand.
        nbytes: of the tensors; of an arena those that `stage` will place.
    """

    sub_batch: SubBatch
    inputs: Mapping[str, Shape]
    texts: Mapping[str, bytes]
    outputs: Mapping[str, Shape]
    nbytes: int
    gathered: tuple[GatherInput, ...] = ()
    retained: tuple[RetainOutput, ...] = ()
    unrequested: tuple[str, ...] = ()


def sub_batch_shapes(
    sub_batch: SubBatch,
    requests: Sequence[Request],
    layout: Layout,
    retention: BatchRetention | None = None,
    *,
    staged: bool = True,
) -> SubBatchShapes:
    """Return the shapes of a sub-batch's tensors; outputs that stay get their keys.

    Texts are written, and sizes rounded up, as they will lie in an arena, unless `staged` says that
    none is used.
    """
    first = requests[sub_batch.spans[0].request]
    key = (sub_batch.bucket, first.equal_sizes, first.omitted)
    plain = not (staged or first.on_device) and retention is None
    known = layout.run_shapes.get(key) if plain else None
    if known is not None:
        inputs, outputs, nbytes = known
        return SubBatchShapes(
            sub_batch=sub_batch, inputs=inputs, texts=NO_TEXTS, outputs=outputs, nbytes=nbytes
        )
    shapes = _shapes(sub_batch, requests, layout, retention, staged=staged)
    if plain and not any(item.source for item in layout.inputs):
        if len(layout.run_shapes) >= REMEMBERED_SHAPES:
            layout.run_shapes.clear()
        layout.run_shapes[key] = shapes.inputs, shapes.outputs, shapes.nbytes
    return shapes


def _shapes(
    sub_batch: SubBatch,
    requests: Sequence[Request],
    layout: Layout,
    retention: BatchRetention | None,
    *,
    staged: bool,
) -> SubBatchShapes:
    """Return the shapes of a sub-batch's tensors; as `sub_batch_shapes`."""
    first = requests[sub_batch.spans[0].request]
    sizes = sub_batch.bucket[1:] + first.equal_sizes
    batch = sub_batch.bucket[:1] if layout.batched else ()
    inputs: dict[str, Shape] = {}
    texts: dict[str, bytes] = {}
    gathered: list[GatherInput] = []
    sizes_bytes: list[int] = []
    for item in layout.inputs:
        if item.name in first.omitted:
            continue
        if item.source:
            shape = batch_shape(item, sources(item.source, sub_batch, requests))
        else:
            shape = item.shape(batch, sizes)
        if item.name in first.on_device:
            gathered.append(gather_input(item, shape, sub_batch, requests))
            continue
        inputs[item.name] = shape
        if item.dtype.name == "BYTES" and staged:
            whole = _written(shape, item, sub_batch, requests, layout)
            texts[item.name] = encode_bytes(whole)
            sizes_bytes.append(len(texts[item.name]))
        else:
            sizes_bytes.append(math.prod(shape) * item.dtype.itemsize)
    outputs, retained = _output_shapes(layout, batch, sizes, retention)
    sizes_bytes += [
        math.prod(outputs[output.name]) * output.dtype.itemsize
        for output in layout.outputs
        if output.name in outputs
    ]
    return SubBatchShapes(
        sub_batch=sub_batch,
        inputs=inputs,
        texts=texts,
        outputs=outputs,
        nbytes=sum(map(aligned, sizes_bytes) if staged else sizes_bytes),
        gathered=tuple(gathered),
        retained=tuple(retained),
        unrequested=() if retention is None else tuple(retention.unrequested),
    )


def _output_shapes(
    layout: Layout, batch: Shape, sizes: Shape, retention: BatchRetention | None
) -> tuple[dict[str, Shape], list[RetainOutput]]:
    """Return the outputs that get a place in the arena, and those that stay; of known shapes."""
    outputs: dict[str, Shape] = {}
    retained: list[RetainOutput] = []
    for output in layout.outputs:
        shape = batch + output.row_shape(sizes)
        if -1 in shape or output.source or output.dtype.name == "BYTES":
            continue
        to_host = True
        if retention is not None and output.name in retention.outputs:
            retained.append(retention.retain(output, shape))
            to_host = retained[-1].also_to_host
        if to_host and (retention is None or output.name not in retention.unrequested):
            outputs[output.name] = shape
    return outputs, retained


def stage(
    shapes: SubBatchShapes,
    requests: Sequence[Request],
    layout: Layout,
    arena: Arena,
    *,
    spill_bytes: int = 0,
) -> Run:
    """Write a sub-batch's inputs into the arena and return the run, of no connection yet.

    Rows that only fill the bucket repeat the first row: they are valid for every model, and `split`
    drops them.

    Args:
        shapes: the sub-batch's shapes.
        requests: the batch.
        layout: the graph's.
        arena: with room for `shapes.nbytes` and `spill_bytes`.
        spill_bytes: for outputs whose shape only the run will tell.
    """
    inputs = []
    for item in layout.inputs:
        shape = shapes.inputs.get(item.name)
        if shape is None:
            continue
        text = shapes.texts.get(item.name)
        nbytes = math.prod(shape) * item.dtype.itemsize if text is None else len(text)
        ref = arena.place(item.name, item.dtype.name, shape, nbytes)
        if text is None:
            _write(arena.view(ref), item, shapes.sub_batch, requests, layout)
        else:
            arena.write(ref, text)
        inputs.append(ref)
    outputs = []
    for output in layout.outputs:
        known = shapes.outputs.get(output.name)
        if known is not None:
            nbytes = math.prod(known) * output.dtype.itemsize
            outputs.append(arena.place(output.name, output.dtype.name, known, nbytes))
    spill = NO_SPILL
    if spill_bytes:
        spill = SpillRange(
            offset=arena.place("spill", "UINT8", (), spill_bytes).offset, nbytes=spill_bytes
        )
    placed = tuple(inputs), tuple(outputs)
    return _order(shapes, requests, placed, spill)


def direct(
    shapes: SubBatchShapes,
    requests: Sequence[Request],
    layout: Layout,
    *,
    graph: int,
    priority: int,
    solo: bool,
) -> tuple[Run, dict[str, Array]]:
    """Return a sub-batch as a run in this process, and its inputs, which lie in no arena.

    What one request has sent as the graph takes it is not copied.

    Args:
        shapes: the sub-batch's, without texts.
        requests: the batch.
        layout: the graph's.
        graph: see `Run`.
        priority: likewise.
        solo: likewise.
    """
    sent = _sent_alone(shapes.sub_batch, requests)
    inputs: dict[str, Array] = {}
    for item in layout.inputs:
        shape = shapes.inputs.get(item.name)
        if shape is None:
            continue
        given = sent.get(item.name)
        if given is not None and given.shape == shape:
            inputs[item.name] = np.ascontiguousarray(given)
        else:
            inputs[item.name] = _written(shape, item, shapes.sub_batch, requests, layout)
    order = _order(shapes, requests, ((), ()), NO_SPILL, graph=graph, priority=priority, solo=solo)
    return order, inputs


def _sent_alone(sub_batch: SubBatch, requests: Sequence[Request]) -> Mapping[str, Array]:
    """Return the tensors of the one request whose rows all run here; else none."""
    span, *others = sub_batch.spans
    request = requests[span.request]
    return {} if others or request.members or span.count < request.rows else request.tensors


def _written(
    shape: Shape,
    item: InputLayout,
    sub_batch: SubBatch,
    requests: Sequence[Request],
    layout: Layout,
) -> Array:
    made: Array = np.empty(shape, item.dtype.numpy)
    _write(made, item, sub_batch, requests, layout)
    return made


def _order(  # noqa: PLR0913 - a run's fields
    shapes: SubBatchShapes,
    requests: Sequence[Request],
    placed: tuple[tuple[TensorRef, ...], tuple[TensorRef, ...]],
    spill: SpillRange,
    *,
    graph: int = 0,
    priority: int = NORMAL,
    solo: bool = False,
) -> Run:
    spans = shapes.sub_batch.spans
    own = [one for s in spans for one in requests[s.request].each(s.first, s.count)]
    slots = tuple([request.slot for request in own if request.slot >= 0])
    return Run(
        id=0,
        graph=graph,
        arena=0,
        priority=priority,
        solo=solo,
        inputs=placed[0],
        outputs=placed[1],
        deadline_ns=deadline_of(shapes.sub_batch, requests),
        cost_ns=round(min(shapes.sub_batch.cost_ns, MAX_NS)),
        slots=slots,
        starting=tuple([request.slot for request in own if request.starting]) if slots else (),
        rows=shapes.sub_batch.bucket[0] if slots else 0,
        gathered=shapes.gathered,
        retained=shapes.retained,
        unrequested=shapes.unrequested,
        bucket=shapes.sub_batch.bucket,
        real_rows=shapes.sub_batch.rows,
        spill=spill,
    )


def sources(name: str, sub_batch: SubBatch, requests: Sequence[Request]) -> list[Array]:
    """Return an input's tensor of every request in a sub-batch, in order."""
    return [requests[span.request].tensors[name] for span in sub_batch.spans]


def _write(
    target: Array,
    item: InputLayout,
    sub_batch: SubBatch,
    requests: Sequence[Request],
    layout: Layout,
) -> None:
    """Write one input, row by row; without a batch dimension the one request is the one row."""
    if item.source:
        write_batch(target, item, sources(item.source, sub_batch, requests))
        return
    if item.common is not None:
        first = requests[sub_batch.spans[0].request]
        given = first.tensors.get(item.name)
        if given is not None:
            target[...] = (given[0] if layout.batched else given).reshape(target.shape)
        else:
            _make(target[np.newaxis], item, first)
        return
    if layout.batched and (whole := _end_to_end(target, item, sub_batch, requests)):
        np.concatenate(whole, out=target)
        return
    lines = target if layout.batched else target[np.newaxis]
    sizes = sub_batch.bucket[1:]
    if any(requests[span.request].sizes != sizes for span in sub_batch.spans):
        lines[...] = b"" if target.dtype == object else item.fill
    at = 0
    for span in sub_batch.spans:
        request = requests[span.request]
        end = at + span.count
        if item.name not in request.tensors:
            _make(lines[at:end], item, request)
        else:
            rows = _sent(item.name, span, request, layout)
            corner = (slice(at, end), *[slice(size) for size in rows.shape[1:]])
            lines[corner] = rows
        at = end
    if at < len(lines):
        lines[at:] = lines[:1]


def _end_to_end(
    target: Array, item: InputLayout, sub_batch: SubBatch, requests: Sequence[Request]
) -> list[Array]:
    """Return the tensors of whole requests that fill an input end to end; none if there is more."""
    row, found = target.shape[1:], list[Array]()
    for span in sub_batch.spans:
        request = requests[span.request]
        given = request.tensors.get(item.name)
        if given is None or given.shape[1:] != row:
            return []
        if request.members:
            found += [one.tensors[item.name] for one in request.each(span.first, span.count)]
        elif len(given) == span.count:
            found.append(given)
        else:
            return []
    return found if sub_batch.rows == len(target) else []


def _sent(name: str, span: RowSpan, request: Request, layout: Layout) -> Array:
    """Return the rows of a span of an input; without a batch dimension the request is one."""
    if request.members:
        rows = [one.tensors[name] for one in request.each(span.first, span.count)]
        return np.concatenate(rows)
    given = request.tensors[name]
    return given[span.first : span.first + span.count] if layout.batched else given[None]


def _make(block: Array, item: InputLayout, request: Request) -> None:
    """Write an input that the client left to the backend."""
    if item.made == "mask":
        real = item.row_shape(request.sizes + request.equal_sizes)
        if block.shape[1:] != real:
            block[...] = item.fill
            corner = (slice(None), *[slice(size) for size in real])
            block = block[corner]
        _store(block, np.array(item.real), item)
    elif item.made == "lengths":
        _store(block, np.array((*request.sizes, *request.equal_sizes, 1)[item.counted]), item)
    elif item.made == "positions":
        _store(block, np.arange(block.shape[-1]), item)
    else:
        block[...] = item.number


def _store(block: Array, values: Array, item: InputLayout) -> None:
    block[...] = float32_to_bf16(values) if item.dtype.name == "BF16" else values


def deadline_of(sub_batch: SubBatch, requests: Sequence[Request]) -> int:
    """Return the latest deadline of the requests in it, 0 if one has none."""
    deadlines = [
        one.deadline_ns
        for span in sub_batch.spans
        for one in requests[span.request].each(span.first, span.count)
    ]
    return 0 if 0 in deadlines else max(deadlines)
