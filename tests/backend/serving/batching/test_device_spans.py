"""Rows that stay on the device go from run to run as they would through the host."""

import contextlib
import itertools
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.device.resident.rows import BufferRows, gathered
from ge_backend.executor.protocol.arena import Arena
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.serving.batching.device_spans import device_spans, joined
from ge_backend.serving.batching.device_tensor import BatchRetention
from ge_backend.serving.batching.plan import RowSpan, SubBatch
from ge_backend.serving.batching.request import check_request
from ge_backend.serving.batching.split import join, split
from ge_backend.serving.batching.stage import stage, sub_batch_shapes
from ge_backend.tensors import DATA_TYPES

FP32 = DATA_TYPES["FP32"]
INNER = 2
ROW = {"dtype": FP32, "dims": (-1, INNER), "axes": (0, -1), "names": ("n", "")}
LAYOUT = Layout(
    batched=True,
    axes=("n",),
    limits={},
    inputs=(InputLayout(name="x", fill=0.0, made="", **ROW),),
    outputs=(OutputLayout(name="y", **ROW), OutputLayout(name="z", **ROW)),
)


@dataclass(frozen=True)
class Buffer:
    tensor: np.ndarray
    nbytes: int = 0

    def close(self):
        pass


@st.composite
def sub_batches(draw, sizes, rows):
    """Cut rows of requests into sub-batches at random, each row once."""
    every = [(at, row) for at, count in enumerate(rows) for row in range(count)]
    every = draw(st.permutations(every))
    cuts = sorted(draw(st.sets(st.integers(1, len(every)), max_size=3)) | {len(every)})
    found = []
    for begin, end in itertools.pairwise([0, *cuts]):
        spans = []
        for request, row in sorted(every[begin:end]):
            if spans and spans[-1].request == request and row == spans[-1].first + spans[-1].count:
                spans[-1] = RowSpan(request, spans[-1].first, spans[-1].count + 1)
            else:
                spans.append(RowSpan(request, row, 1))
        spans = draw(st.permutations(spans))
        longest = max(sizes[span.request] for span in spans)
        bucket = (
            end - begin + draw(st.integers(0, 2)),
            longest + draw(st.integers(0, 2)),
        )
        found.append(SubBatch(spans=tuple(spans), bucket=bucket, rows=end - begin, cost_ns=1.0))
    return found


def made(ref, tensors):
    """Return the input that a device would make of device tensors, by key."""
    parts = [
        BufferRows(
            buffer=Buffer(tensors[rows.key]),
            shape=tensors[rows.key].shape,
            first=rows.first,
            count=rows.count,
            length=rows.length,
        )
        for rows in ref.rows
    ]
    item = gathered(DATA_TYPES[ref.dtype], ref.shape, ref.fill, parts)
    block = np.full(int(np.prod(ref.shape)) * FP32.itemsize, 0x11, np.uint8)
    if item.fill >= 0:
        block[:] = item.fill
    for copy in item.copies:
        source = copy.buffer.tensor.reshape(-1).view(np.uint8)
        block[copy.offset : copy.offset + copy.nbytes] = source[copy.place :][: copy.nbytes]
    return block.view(np.float32).reshape(ref.shape)


def staged(sub_batch, requests):
    shapes = sub_batch_shapes(sub_batch, requests, LAYOUT)
    with contextlib.closing(Arena(1)) as arena:
        arena.reserve(shapes.nbytes)
        (ref,) = stage(shapes, requests, LAYOUT, arena).inputs
        return arena.view(ref).copy()


@given(st.data())
def test_what_is_gathered_is_what_would_be_staged(data):
    """Whatever runs the rows come from, and however they are grouped for the next ones."""
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    rows = [data.draw(st.integers(1, 3)) for _ in sizes]
    generator = np.random.default_rng(data.draw(st.integers(0, 999)))
    arrays = [
        generator.standard_normal((count, size, INNER)).astype(np.float32)
        for count, size in zip(rows, sizes, strict=True)
    ]
    through_host = [check_request(at, {"x": array}, LAYOUT) for at, array in enumerate(arrays)]
    retention = BatchRetention({"y": False}, itertools.count(1), [])
    tensors, spans = {}, {}
    for sub_batch in data.draw(sub_batches(sizes, rows)):
        (ref,) = sub_batch_shapes(sub_batch, through_host, LAYOUT, retention).retained
        tensors[ref.key] = tensor = np.full(ref.shape, 666, np.float32)
        at = 0
        for span in sub_batch.spans:
            real = arrays[span.request][span.first : span.first + span.count]
            tensor[at : at + span.count, : real.shape[1]] = real
            at += span.count
        for found in device_spans(sub_batch, [ref]):
            spans.setdefault(found[0].request, []).append(found)
    on_device = []
    for at, request in enumerate(through_host):
        (tensor,) = joined(spans[at], LAYOUT, request).values()
        assert (tensor.shape, tensor.dtype) == (arrays[at].shape, arrays[at].dtype)
        on_device.append(check_request(at, {}, LAYOUT, on_device={"x": tensor}))
        assert (on_device[at].rows, on_device[at].sizes) == (request.rows, request.sizes)
    for sub_batch in data.draw(sub_batches(sizes, rows)):
        shapes = sub_batch_shapes(sub_batch, on_device, LAYOUT)
        assert shapes.inputs == {}
        (ref,) = shapes.gathered
        assert made(ref, tensors).tobytes() == staged(sub_batch, through_host).tobytes()


SUB_BATCH = SubBatch(spans=(RowSpan(1, 0, 1), RowSpan(0, 0, 2)), bucket=(4, 3), rows=3, cost_ns=1.0)
ARRAYS = [np.ones((2, 3, INNER), np.float32), np.ones((1, 2, INNER), np.float32)]
REQUESTS = [check_request(at, {"x": array}, LAYOUT) for at, array in enumerate(ARRAYS)]


def test_an_output_that_only_stays_takes_no_room_in_the_arena():
    """One that is shown as well has its place there, as have those that do not stay."""
    plain = sub_batch_shapes(SUB_BATCH, REQUESTS, LAYOUT)
    retention = BatchRetention({"y": False, "z": True}, itertools.count(9), [])
    shapes = sub_batch_shapes(SUB_BATCH, REQUESTS, LAYOUT, retention)
    assert plain.retained == ()
    assert list(plain.outputs) == ["y", "z"]
    assert [(ref.name, ref.key, ref.shape, ref.also_to_host) for ref in shapes.retained] == [
        ("y", 9, (4, 3, INNER), False),
        ("z", 10, (4, 3, INNER), True),
    ]
    assert list(shapes.outputs) == ["z"]
    assert shapes.nbytes < plain.nbytes
    arena = Arena(1)
    arena.reserve(shapes.nbytes)
    order = stage(shapes, REQUESTS, LAYOUT, arena)
    assert (order.retained, [ref.name for ref in order.outputs]) == (shapes.retained, ["z"])


def test_an_output_that_only_stays_is_not_split():
    """Nor missed, nor joined."""
    outputs = {"z": np.zeros((4, 3, INNER), np.float32)}
    pieces = split(SUB_BATCH, REQUESTS, LAYOUT, outputs, ["y"])
    assert [list(piece) for _, piece in pieces] == [["z"], ["z"]]
    assert list(join([pieces[1], (RowSpan(0, 2, 1), pieces[0][1])], LAYOUT)) == ["z"]


def test_an_output_that_nobody_wants_has_no_place_and_is_not_kept():
    """The order names it, so that it is not downloaded."""
    retention = BatchRetention({}, itertools.count(1), [], frozenset({"y"}))
    shapes = sub_batch_shapes(SUB_BATCH, REQUESTS, LAYOUT, retention)
    assert (list(shapes.outputs), shapes.retained) == (["z"], ())
    arena = Arena(1)
    arena.reserve(shapes.nbytes)
    assert stage(shapes, REQUESTS, LAYOUT, arena).unrequested == ("y",)
