"""From the rows of runs to tensors of requests and back, where both stay on the device.

What `split` and `stage` do with arrays is done here with places: a run's outputs are rows of
several requests, and a later run's inputs are such rows in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ge_backend.executor.protocol.messages import DeviceRows, GatherInput, RetainOutput
from ge_backend.model.layout.layout import InputLayout, Layout
from ge_backend.serving.batching.device_tensor import DeviceTensor, fill_byte
from ge_backend.serving.batching.plan import RowSpan, SubBatch
from ge_backend.serving.batching.request import Request
from ge_backend.tensors import Shape

__all__ = ["DeviceSpan", "device_spans", "gather_input", "joined"]

# Where one span's rows of every output that has stayed begin: (key, row), by name.
DeviceSpan = tuple[RowSpan, dict[str, tuple[int, int]]]


def device_spans(sub_batch: SubBatch, retained: Sequence[RetainOutput]) -> list[DeviceSpan]:
    """Return where the rows of each span of a run are."""
    found: list[DeviceSpan] = []
    at = 0
    for span in sub_batch.spans:
        found.append((span, {ref.name: (ref.key, at) for ref in retained}))
        at += span.count
    return found


def joined(
    spans: Sequence[DeviceSpan], layout: Layout, request: Request
) -> dict[str, DeviceTensor]:
    """Return one request's tensors from its spans, which may have run in several sub-batches."""
    ordered = sorted(spans, key=lambda item: item[0].first)
    sizes = request.sizes + request.equal_sizes
    return {
        output.name: _tensor(
            (request.rows, *output.row_shape(sizes)),
            output.dtype.numpy,
            [(span, places[output.name]) for span, places in ordered],
        )
        for output in layout.outputs
        if output.name in ordered[0][1]
    }


def gather_input(
    item: InputLayout, shape: Shape, sub_batch: SubBatch, requests: Sequence[Request]
) -> GatherInput:
    """Return an input of a run that is made on the device, padded to this shape."""
    rows: list[DeviceRows] = []
    for span in sub_batch.spans:
        rows += _part(requests[span.request].on_device[item.name], span.first, span.count)
    return GatherInput(
        name=item.name,
        dtype=item.dtype.name,
        shape=shape,
        fill=fill_byte(item),
        rows=tuple(rows),
    )


def _tensor(
    shape: Shape, dtype: np.dtype[Any], places: Sequence[tuple[RowSpan, tuple[int, int]]]
) -> DeviceTensor:
    length = shape[1] if len(shape) > 1 else 1
    rows = [
        DeviceRows(key=key, first=first, count=span.count, length=length)
        for span, (key, first) in places
    ]
    return DeviceTensor(shape=shape, dtype=dtype, rows=tuple(rows))


def _part(tensor: DeviceTensor, first: int, count: int) -> Iterator[DeviceRows]:
    """Yield where rows `first` to `first + count` of a request lie."""
    begin = 0
    for rows in tensor.rows:
        low, high = max(first, begin), min(first + count, begin + rows.count)
        if low < high:
            yield DeviceRows(
                key=rows.key,
                first=rows.first + low - begin,
                count=high - low,
                length=rows.length,
            )
        begin += rows.count
