"""Splitting is the inverse of staging, and what a graph returns is checked on the way."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge_backend.device.base import ROW_ERRORS
from ge_backend.errors import GraphFailed, InvalidRequest
from ge_backend.executor.protocol.arena import Arena
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.serving.batching.plan import Policy, RowSpan, SubBatch, plan
from ge_backend.serving.batching.request import Request, check_request
from ge_backend.serving.batching.split import join, refused_requests, split
from ge_backend.serving.batching.stage import stage, sub_batch_shapes
from ge_backend.shapes.buckets.costs import DynamicCosts, StaticCosts
from ge_backend.tensors import DATA_TYPES

DTYPES = ["FP32", "INT8", "BOOL", "FP16", "BF16", "BYTES"]
AXES = ("a", "b")


@st.composite
def layouts(draw):
    """A layout of up to three inputs over two padded axes and one of equal sizes; outputs echo them."""
    inputs, outputs = [], []
    for index in range(draw(st.integers(1, 3))):
        # Axis 0 and 1 are padded, 2 is an equal one, -1 is a fixed dimension of size 2.
        axes = tuple(draw(st.lists(st.sampled_from([0, 1, 2, -1]), max_size=3)))
        if index == 0:
            axes = (*axes, 0, 1, 2)  # somebody has to tell each size
        dims = tuple(2 if axis < 0 else -1 for axis in axes)
        names = tuple("" for _ in axes)
        dtype = DATA_TYPES[draw(st.sampled_from(DTYPES))]
        made = draw(st.sampled_from(["", "mask", "zeros"])) if index and dtype.itemsize else ""
        common = {"name": f"t{index}", "dtype": dtype, "dims": dims, "axes": axes, "names": names}
        fill = draw(st.sampled_from([0.0, 1.0]))
        inputs.append(InputLayout(fill=fill, made=made, **common))
        outputs.append(OutputLayout(**common))
    return Layout(
        batched=draw(st.booleans()),
        axes=AXES,
        equal_axes=("m",),
        limits={},
        inputs=tuple(inputs),
        outputs=tuple(outputs),
    )


def random_tensor(rng, dtype, shape):
    if dtype.name == "BYTES":
        flat = [
            bytes(rng.integers(0, 256, rng.integers(0, 4)).tolist())
            for _ in range(np.prod(shape, dtype=int))
        ]
        array = np.empty(len(flat), object)
        array[:] = flat
        return array.reshape(shape)
    return rng.integers(0, 2 if dtype.name == "BOOL" else 100, shape).astype(dtype.numpy)


@st.composite
def batches(draw):
    """A layout, and requests that fit it, with client batches of up to 3."""
    layout = draw(layouts())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    requests = []
    for index in range(draw(st.integers(1, 6))):
        rows = draw(st.integers(1, 3)) if layout.batched else 1
        sizes = (draw(st.integers(0, 5)), draw(st.integers(0, 5)), draw(st.integers(0, 1)))
        tensors = {}
        for item in layout.inputs:
            if item.made and draw(st.booleans()):
                continue
            shape = item.row_shape(sizes)
            batch = (rows,) if layout.batched else ()
            tensors[item.name] = random_tensor(rng, item.dtype, batch + shape)
        requests.append(check_request(index, tensors, layout))
    return layout, requests


BUCKETS = st.dictionaries(
    st.tuples(st.integers(1, 4), st.integers(0, 6), st.integers(0, 6)),
    st.integers(1, 100).map(float),
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(batches(), BUCKETS, st.booleans())
def test_splitting_what_was_staged_gives_back_every_request(batch, table, dynamic):
    """Through a graph that returns its inputs, every tensor comes back bit by bit, unpadded."""
    layout, requests = batch
    table |= {(1 if not layout.batched else 2, 6, 6): 50.0}
    if not layout.batched:
        table = {(1, *bucket[1:]): cost for bucket, cost in table.items()}
    costs = DynamicCosts(table, max(b[0] for b in table)) if dynamic else StaticCosts(table)
    shapes = [
        sub_batch_shapes(s, requests, layout)
        for s in plan(requests, costs, Policy(axes=AXES)).sub_batches
    ]
    arena = Arena(1)
    arena.reserve(sum(each.nbytes for each in shapes))
    pieces = {position: [] for position in range(len(requests))}
    for each in shapes:
        order = stage(each, requests, layout, arena)
        echoed = {ref.name: arena.view(ref) for ref in order.inputs}
        assert {ref.name: ref.shape for ref in order.outputs}.items() <= each.inputs.items()
        for piece in split(each.sub_batch, requests, layout, echoed):
            pieces[piece[0].request].append(piece)
    for position, request in enumerate(requests):
        outputs = join(pieces[position], layout)
        for item in layout.inputs:
            assert same(outputs[item.name], expected(item, request, layout))
    arena.close()


def expected(item, request, layout):
    """What a request sent, or what is made for it when it did not; one value is `[1]`."""
    if not (layout.batched or item.dims):
        return sent(item, request, layout).reshape(1)
    return sent(item, request, layout)


def sent(item, request, layout):
    if item.name in request.tensors:
        return request.tensors[item.name]
    batch = (request.rows,) if layout.batched else ()
    one = 0x3F80 if item.dtype.name == "BF16" else 1
    value = one if item.made == "mask" else 0
    return np.full(
        batch + item.row_shape(request.sizes + request.equal_sizes), value, item.dtype.numpy
    )


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tolist() == b.tolist()


def layout_of(*outputs, batched=True, equal_axes=()):
    return Layout(
        batched=batched,
        axes=("length",),
        equal_axes=equal_axes,
        limits={},
        inputs=(),
        outputs=outputs,
    )


def output(name, dims, axes, dtype="FP32"):
    return OutputLayout(
        name=name, dtype=DATA_TYPES[dtype], dims=dims, axes=axes, names=tuple("" for _ in dims)
    )


def request(length, equal_sizes=()):
    return Request(index=0, rows=1, tensors={}, sizes=(length,), equal_sizes=equal_sizes)


ONE = SubBatch(spans=(RowSpan(0, 0, 1),), bucket=(2, 4), rows=1, cost_ns=1.0)


def f32(*shape):
    return np.zeros(shape, np.float32)


def test_outputs_are_cut_along_the_axes_that_they_follow():
    """Rows and padded axes are cut; equal, fixed and unknown ones are left whole."""
    layout = layout_of(
        output("tokens", (-1, 8), (0, -1)),
        output("transposed", (8, -1), (-1, 0)),
        output("pooled", (8,), (-1,)),
        output("equal", (-1, -1), (1, 0)),
        output("unknown", (-1,), (-1,)),
        equal_axes=("k",),
    )
    outputs = {
        "tokens": f32(2, 4, 8),
        "transposed": f32(2, 8, 4),
        "pooled": f32(2, 8),
        "equal": f32(2, 5, 4),
        "unknown": f32(2, 77),
    }
    ((_, cut),) = split(ONE, [request(3, (5,))], layout, outputs)
    assert {name: array.shape for name, array in cut.items()} == {
        "tokens": (1, 3, 8),
        "transposed": (1, 8, 3),
        "pooled": (1, 8),
        "equal": (1, 5, 3),
        "unknown": (1, 77),
    }


def test_pieces_are_views_of_what_the_graph_returned():
    """Nothing is copied before the reply."""
    whole = f32(2, 4, 8)
    layout = layout_of(output("tokens", (-1, 8), (0, -1)))
    ((_, cut),) = split(ONE, [request(3)], layout, {"tokens": whole})
    assert np.shares_memory(cut["tokens"], whole)


def test_pieces_of_one_request_are_joined_in_row_order():
    """Sub-batches end in any order; the rows of a request do not."""
    late = (RowSpan(0, 2, 1), {"y": np.array([[3]])})
    early = (RowSpan(0, 0, 2), {"y": np.array([[1], [2]])})
    layout = layout_of(output("y", (1,), (-1,)))
    assert join([late, early], layout)["y"].tolist() == [[1], [2], [3]]
    assert join([early], layout)["y"] is early[1]["y"]


WITH_LENGTHS = layout_of(replace(output("y", (-1,), (-1,), "INT64"), lengths=("n",), fill=9))


def test_requests_are_cut_to_what_another_output_tells():
    """Each to its own longest row; the output that tells it need not be one that clients get."""
    spans = (RowSpan(0, 0, 1), RowSpan(1, 0, 2))
    run = SubBatch(spans=spans, bucket=(4, 4), rows=3, cost_ns=1.0)
    outputs = {"y": np.ones((4, 6), np.int64), "n": np.array([4, 1, 2, 6])}
    pieces = split(run, [request(3), request(4)], WITH_LENGTHS, outputs)
    assert [piece["y"].tolist() for _, piece in pieces] == [[[1, 1, 1, 1]], [[1, 9], [1, 1]]]


def test_pieces_of_different_lengths_are_joined_with_the_fill():
    """Rows of one request may have run in sub-batches of different lengths."""
    early = (RowSpan(0, 0, 1), {"y": np.array([[1, 2, 3]])})
    late = (RowSpan(0, 1, 1), {"y": np.array([[4]])})
    assert join([late, early], WITH_LENGTHS)["y"].tolist() == [[1, 2, 3], [4, 9, 9]]


def test_a_refused_row_is_told_by_its_place_in_its_own_request():
    """Requests without a refused row are not named, and a request is named once."""
    spans = (RowSpan(0, 0, 2), RowSpan(3, 4, 2), RowSpan(1, 0, 1))
    run = SubBatch(spans=spans, bucket=(8,), rows=5, cost_ns=1.0)
    reasons = np.array([b"", b"", b"", b"not UTF-8: \xc3\xa9", b"", b"", b"", b""], object)
    refused = refused_requests(run, {ROW_ERRORS: reasons})
    assert {at: str(error) for at, error in refused.items()} == {3: "row 5: not UTF-8: é"}
    assert isinstance(refused[3], InvalidRequest)
    assert refused_requests(run, {}) == {}


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        pytest.param({}, "no output 'y'", id="missing"),
        pytest.param(
            {"y": np.zeros((2, 4, 8))}, "float64 for output 'y'; expected FP32", id="dtype"
        ),
        pytest.param({"y": f32(2, 4)}, r"\[2, 4\] .* expected \[2, 4, 8\]", id="rank"),
        pytest.param(
            {"y": f32(1, 4, 8)},
            r"\[1, 4, 8\] .* expected \[2, 4, 8\].*; output 'y' has the shape .* its first dimension is not the rows",
            id="rows",
        ),
        pytest.param({"y": f32(2, 3, 8)}, r"\[2, 3, 8\] .* expected \[2, 4, 8\]", id="padded axis"),
        pytest.param({"y": f32(2, 4, 7)}, r"\[2, 4, 7\] .* expected \[2, 4, 8\]", id="fixed size"),
    ],
)
def test_an_output_that_is_not_what_was_promised_fails_the_run(outputs, message):
    """Cutting it would give clients something wrong without a word."""
    layout = layout_of(output("y", (-1, 8), (0, -1)))
    with pytest.raises(GraphFailed, match=message):
        split(ONE, [request(3)], layout, outputs)


def test_one_value_without_dimensions_is_what_was_declared_as_one():
    """A TorchScript file does not say that it returns such, and the host has no other word for it."""
    layout = replace(layout_of(output("y", (1,), (-1,))), batched=False)
    ((_, cut),) = split(ONE, [request(3)], layout, {"y": np.array(7, np.float32)})
    assert cut["y"].tolist() == [7]
    layout = replace(layout, outputs=(output("y", (2,), (-1,)),))
    with pytest.raises(GraphFailed, match=r"shape \[\] for output 'y'; expected \[2\]"):
        split(ONE, [request(3)], layout, {"y": np.array(7, np.float32)})


def test_an_axis_that_is_not_padded_may_have_any_size():
    """One symbol for two sizes is common in exported graphs; nothing depends on it here."""
    layout = layout_of(output("y", (-1,), (1,)), equal_axes=("k",))
    ((_, cut),) = split(ONE, [request(3, (5,))], layout, {"y": f32(2, 6)})
    assert cut["y"].shape == (1, 6)
