"""Rows are written once, padded, and what the graph wants besides is made from their sizes."""

from dataclasses import replace

import numpy as np
import pytest

from ge_backend.executor.protocol.arena import Arena
from ge_backend.executor.protocol.messages import NO_SPILL
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.serving.batching.plan import RowSpan, SubBatch
from ge_backend.serving.batching.request import check_request
from ge_backend.serving.batching.stage import stage, sub_batch_shapes
from ge_backend.tensors import DATA_TYPES


def item(name, dims=(-1,), axes=(0,), made="", dtype="INT64", fill=0.0, **more):
    return InputLayout(
        name=name,
        dtype=DATA_TYPES[dtype],
        dims=dims,
        axes=axes,
        names=tuple("length" if axis >= 0 else "" for axis in axes),
        fill=fill,
        made=made,
        **more,
    )


def output(name, dims, axes, dtype="FP32", source=""):
    return OutputLayout(
        name=name,
        dtype=DATA_TYPES[dtype],
        dims=dims,
        axes=axes,
        names=tuple("" for _ in dims),
        source=source,
    )


def layout_of(*inputs, outputs=(), axes=("length",), equal_axes=(), batched=True):
    return Layout(
        batched=batched,
        axes=axes,
        equal_axes=equal_axes,
        limits={},
        inputs=inputs,
        outputs=tuple(outputs),
    )


def staged(layout, tensors, spans, bucket):
    """Stage one sub-batch into a fresh arena; return its inputs, the order and its shapes."""
    requests = [check_request(i, given, layout) for i, given in enumerate(tensors)]
    rows = sum(count for _, _, count in spans)
    sub_batch = SubBatch(
        spans=tuple(RowSpan(*span) for span in spans), bucket=bucket, rows=rows, cost_ns=1.0
    )
    shapes = sub_batch_shapes(sub_batch, requests, layout)
    arena = Arena(1)
    arena.reserve(shapes.nbytes)
    poison = arena.place("poison", "UINT8", (shapes.nbytes,), shapes.nbytes)
    arena.view(poison)[...] = 0xAA
    arena.reserve(shapes.nbytes)
    order = stage(shapes, requests, layout, arena)
    return {ref.name: arena.view(ref) for ref in order.inputs}, order, shapes


def ids(*rows):
    return np.array(rows, np.int64)


def test_rows_are_padded_to_the_bucket_and_missing_rows_repeat_the_first():
    """Rows keep their place, padding holds the input's own value, filler rows are valid ones."""
    layout = layout_of(item("ids", fill=9.0))
    tensors = [{"ids": ids([1, 2])}, {"ids": ids([3], [4])}]
    inputs, _, _ = staged(layout, tensors, [(1, 1, 1), (0, 0, 1)], (4, 3))
    assert inputs["ids"].tolist() == [[4, 9, 9], [1, 2, 9], [4, 9, 9], [4, 9, 9]]


def test_an_order_tells_the_timeline_of_its_bucket_and_how_many_rows_are_real():
    """What fills the bucket up is no row of a request."""
    tensors = [{"ids": ids([1, 2])}, {"ids": ids([3], [4])}]
    _, order, _ = staged(layout_of(item("ids")), tensors, [(1, 1, 1), (0, 0, 1)], (4, 3))
    assert (order.bucket, order.real_rows) == ((4, 3), 2)


def test_a_run_has_the_room_that_is_asked_for_behind_its_tensors():
    """For outputs of unknown shapes; nothing that is placed lies in it, and none is nowhere."""
    layout = layout_of(item("ids"))
    requests = [check_request(0, {"ids": ids([1, 2])}, layout)]
    spans = (RowSpan(0, 0, 1),)
    shapes = sub_batch_shapes(
        SubBatch(spans=spans, bucket=(1, 2), rows=1, cost_ns=1.0), requests, layout
    )
    arena = Arena(1)
    arena.reserve(2 * (shapes.nbytes + 100))
    orders = [stage(shapes, requests, layout, arena, spill_bytes=100) for _ in range(2)]
    ends = [ref.offset + ref.nbytes for order in orders for ref in order.inputs + order.outputs]
    assert ends[0] <= orders[0].spill.offset
    assert orders[0].spill.offset + 100 <= orders[1].inputs[0].offset
    assert [order.spill.nbytes for order in orders] == [100, 100]
    assert stage(shapes, requests, layout, Arena(shapes.nbytes)).spill == NO_SPILL


def test_a_mask_is_one_where_a_row_is_real():
    """Made only for requests that did not send one; the others' own is copied and padded."""
    layout = layout_of(item("ids"), item("mask", made="mask"))
    tensors = [{"ids": ids([1, 2])}, {"ids": ids([3, 4, 5]), "mask": ids([1, 0, 1])}]
    inputs, _, _ = staged(layout, tensors, [(0, 0, 1), (1, 0, 1)], (2, 4))
    assert inputs["mask"].tolist() == [[1, 1, 0, 0], [1, 0, 1, 0]]


@pytest.mark.parametrize("bucket", [(2, 3), (2, 2)])
def test_lengths_positions_and_zeros_are_made(bucket):
    """Lengths are real ones, positions count on through the padding."""
    layout = layout_of(
        item("ids"),
        item("lengths", (), (), made="lengths", dtype="INT32"),
        item("column", (1,), (-1,), made="lengths"),
        item("positions", made="positions"),
        item("types", made="zeros"),
    )
    tensors = [{"ids": ids([1, 2])}, {"ids": ids([7])}]
    inputs, _, _ = staged(layout, tensors, [(0, 0, 1), (1, 0, 1)], bucket)
    assert inputs["lengths"].tolist() == [2, 1]
    assert inputs["column"].tolist() == [[2], [1]]
    assert inputs["positions"].tolist() == [list(range(bucket[1]))] * 2
    assert not inputs["types"].any()
    assert inputs["types"].shape == bucket


def test_lengths_may_be_those_of_another_axis():
    """Of a padded one, or of one whose sizes must match."""
    layout = layout_of(
        item("ids"),
        item("sound", (-1,), (1,), ("frames",)),
        item("words", (), (), made="lengths"),
        item("frames", (), (), made="lengths", counted=1),
        axes=("length", "frames"),
    )
    tensors = [{"ids": ids([1, 2]), "sound": ids([1, 2, 3])}, {"ids": ids([7]), "sound": ids([5])}]
    inputs, _, _ = staged(layout, tensors, [(0, 0, 1), (1, 0, 1)], (2, 2, 3))
    assert inputs["words"].tolist() == [2, 1]
    assert inputs["frames"].tolist() == [3, 1]


def test_inputs_are_made_for_axes_that_are_not_padded_too():
    """Then the mask is all ones and the length is that of the axis that must match."""
    layout = layout_of(
        item("ids"),
        item("mask", made="mask"),
        item("lengths", (), (), made="lengths"),
        axes=(),
        equal_axes=("length",),
    )
    inputs, _, _ = staged(layout, [{"ids": ids([1, 2, 3])}], [(0, 0, 1)], (2,))
    assert inputs["mask"].tolist() == [[1, 1, 1]] * 2
    assert inputs["lengths"].tolist() == [3, 3]


def test_a_bf16_input_is_made_of_bit_patterns():
    """The one of a BF16 mask is 0x3F80, and 2 is 0x4000."""
    layout = layout_of(
        item("ids"),
        item("mask", made="mask", dtype="BF16"),
        item("lengths", (), (), made="lengths", dtype="BF16"),
    )
    inputs, _, _ = staged(layout, [{"ids": ids([1, 2])}], [(0, 0, 1)], (1, 3))
    assert inputs["mask"].tolist() == [[0x3F80, 0x3F80, 0]]
    assert inputs["lengths"].tolist() == [0x4000]


def test_padding_may_be_nan():
    """Every value that the type can hold can fill."""
    layout = layout_of(item("x", dtype="FP32", fill=float("nan")))
    inputs, _, _ = staged(layout, [{"x": np.ones((1, 1), np.float32)}], [(0, 0, 1)], (1, 2))
    assert np.array_equal(inputs["x"], [[1, np.nan]], equal_nan=True)


def test_strings_are_padded_with_empty_ones():
    """BYTES travel serialised; what arrives is the padded array."""
    layout = layout_of(item("words", dtype="BYTES"))
    tensors = [{"words": np.array([[b"a", b"bc"]], object)}, {"words": np.array([[b"d"]], object)}]
    inputs, _, shapes = staged(layout, tensors, [(0, 0, 1), (1, 0, 1)], (3, 2))
    assert inputs["words"].tolist() == [[b"a", b"bc"], [b"d", b""], [b"a", b"bc"]]
    assert shapes.inputs["words"] == (3, 2)


@pytest.mark.parametrize("size", [0, 3])
def test_empty_rows_are_padded_like_others(size):
    """A row of length 0 is all padding; a bucket of length 0 holds nothing."""
    layout = layout_of(item("ids", fill=5.0), item("mask", made="mask"))
    tensors = [{"ids": np.zeros((1, 0), np.int64)}]
    inputs, _, _ = staged(layout, tensors, [(0, 0, 1)], (1, size))
    assert inputs["ids"].tolist() == [[5] * size]
    assert inputs["mask"].tolist() == [[0] * size]


def test_a_model_without_a_batch_dimension_is_staged_as_it_is():
    """Its one row is the whole tensor, padded where the engine needs that."""
    layout = layout_of(item("ids"), item("mask", made="mask"), batched=False)
    inputs, _, _ = staged(layout, [{"ids": ids(1, 2)}], [(0, 0, 1)], (1, 4))
    assert inputs["ids"].tolist() == [1, 2, 0, 0]
    assert inputs["mask"].tolist() == [1, 1, 0, 0]


def test_an_input_that_was_left_out_is_not_given_to_the_graph():
    """The graph has a default for it."""
    layout = layout_of(item("ids"), item("extra", (2,), (-1,), optional=True))
    inputs, order, _ = staged(layout, [{"ids": ids([1])}], [(0, 0, 1)], (1, 1))
    assert list(inputs) == ["ids"]
    assert [ref.name for ref in order.inputs] == ["ids"]


def test_outputs_get_a_place_where_their_shape_is_known():
    """Padded axes are as long as the bucket; what only the graph knows gets no place."""
    layout = layout_of(
        item("ids"),
        item("k", (-1,), (1,)),
        outputs=[
            output("tokens", (-1, 4), (0, -1)),
            output("equal", (-1,), (1,)),
            output("unknown", (-1,), (-1,)),
            output("words", (2,), (-1,), dtype="BYTES"),
            output("scattered", (4,), (-1,), source="ids"),
        ],
        equal_axes=("k",),
    )
    tensors = [{"ids": ids([1, 2]), "k": ids([1, 2, 3, 4, 5])}]
    _, order, shapes = staged(layout, tensors, [(0, 0, 1)], (2, 3))
    assert shapes.outputs == {"tokens": (2, 3, 4), "equal": (2, 5)}
    assert [(ref.name, ref.shape) for ref in order.outputs] == list(shapes.outputs.items())


def test_the_latest_deadline_counts_unless_a_request_has_none():
    """A run is given up when none of its requests could still use it."""
    layout = layout_of(item("ids"))

    def deadline(*deadlines):
        requests = [
            check_request(i, {"ids": ids([1])}, layout, deadline_ns=ns)
            for i, ns in enumerate(deadlines)
        ]
        spans = tuple(RowSpan(i, 0, 1) for i in range(len(requests)))
        sub_batch = SubBatch(spans=spans, bucket=(len(spans), 1), rows=len(spans), cost_ns=1.0)
        return stage(
            sub_batch_shapes(sub_batch, requests, layout), requests, layout, Arena(1)
        ).deadline_ns

    assert deadline(5, 7) == 7
    assert deadline(5, 0) == 0


@pytest.mark.parametrize("shape", [(), (1,), (2,)])
@pytest.mark.parametrize("batched", [True, False])
def test_what_has_no_rows_is_written_once(shape, batched):
    """Whatever the number of rows, as the graph has it."""
    size = int(np.prod(shape))
    rate = item("rate", (size,), (-1,), dtype="INT64", common=shape)
    layout = layout_of(item("x", (1,), (-1,)), rate, axes=(), batched=batched)
    rows = (2,) if batched else ()
    tensors = {
        "x": np.ones((*rows, 1), np.int64),
        "rate": np.broadcast_to(np.arange(size) + 7, (*rows, size)),
    }
    spans = [(0, 0, 2 if batched else 1)]
    inputs, *_ = staged(layout, [tensors], spans, (4,) if batched else (1,))
    np.testing.assert_array_equal(inputs["rate"], np.arange(size).reshape(shape) + 7)


def test_an_input_that_is_a_number_holds_it():
    """With rows and without."""
    made = {"made": "number", "number": 5.0}
    layout = layout_of(
        item("x", (1,), (-1,)),
        item("a", (2,), (-1,), **made),
        item("b", (), (), common=(), **made),
        axes=(),
    )
    inputs, *_ = staged(layout, [{"x": np.ones((1, 1), np.int64)}], [(0, 0, 1)], (2,))
    assert inputs["a"].tolist() == [[5, 5], [5, 5]]
    assert inputs["b"].tolist() == 5


def test_shapes_that_are_not_staged_are_those_of_the_run_before_where_it_was_alike():
    """They differ with the bucket, with sizes that are not padded and with inputs left out."""
    layout = layout_of(
        item("ids"),
        item("k", (-1,), (1,), optional=True),
        outputs=[output("tokens", (-1, 4), (0, -1))],
        equal_axes=("k",),
    )

    def shapes_of(layout, bucket, given):
        rows = bucket[0]
        requests = [check_request(i, given, layout) for i in range(rows)]
        spans = tuple(RowSpan(i, 0, 1) for i in range(rows))
        sub_batch = SubBatch(spans=spans, bucket=bucket, rows=rows, cost_ns=1.0)
        found = sub_batch_shapes(sub_batch, requests, layout, staged=False)
        assert found.sub_batch is sub_batch
        return found.inputs, found.outputs, found.nbytes, dict(found.texts)

    sent = {"ids": ids([1, 2])}
    cases = [
        ((1, 2), sent),
        ((2, 2), sent),
        ((2, 3), sent),
        ((2, 3), {**sent, "k": ids([1])}),
        ((2, 3), {**sent, "k": ids([1, 2])}),
    ]
    expected = [shapes_of(replace(layout), bucket, given) for bucket, given in cases]
    assert len({str(each) for each in expected}) == len(cases)
    for _ in range(2):
        assert [shapes_of(layout, bucket, given) for bucket, given in cases] == expected
