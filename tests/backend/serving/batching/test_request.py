"""What a request must look like, and what is said of one that does not."""

from dataclasses import replace

import numpy as np
import pytest

from ge_backend.errors import InvalidRequest
from ge_backend.model.layout.layout import InputLayout, Layout
from ge_backend.serving.batching import request
from ge_backend.serving.batching.request import check_request, stacked
from ge_backend.tensors import DATA_TYPES


def item(name, dims=(-1,), axes=(0,), names=("length",), made="", dtype="INT64", **more):
    return InputLayout(
        name=name,
        dtype=DATA_TYPES[dtype],
        dims=dims,
        axes=axes,
        names=names,
        fill=0.0,
        made=made,
        **more,
    )


def layout_of(*inputs, axes=("length",), equal_axes=(), batched=True, **more):
    return Layout(
        batched=batched,
        axes=axes,
        equal_axes=equal_axes,
        limits={},
        inputs=inputs,
        outputs=(),
        **more,
    )


def zeros(*shape, dtype=np.int64):
    return np.zeros(shape, dtype)


ENCODER = layout_of(item("ids"), item("mask", made="mask"))
WIDE = layout_of(
    item("x", (-1, 3, -1), (0, -1, 1), ("length", "x.2", "k"), dtype="FP32"),
    item("ids"),
    equal_axes=("k",),
)


def test_a_request_has_rows_and_a_size_per_padded_axis():
    """Sizes come from whichever inputs were sent."""
    request = check_request(3, {"ids": zeros(2, 7)}, ENCODER, deadline_ns=5)
    assert (request.index, request.rows, request.sizes) == (3, 2, (7,))
    assert (request.equal_sizes, request.omitted, request.deadline_ns) == ((), (), 5)
    assert check_request(0, {"ids": zeros(2, 7), "mask": zeros(2, 7)}, ENCODER).sizes == (7,)


def test_a_size_of_zero_is_a_size():
    """Triton lets free dimensions be 0."""
    assert check_request(0, {"ids": zeros(1, 0)}, ENCODER).sizes == (0,)


def test_axes_that_are_not_padded_are_part_of_the_key():
    """Requests whose unpadded axes differ have different keys; padded ones do not count."""

    def key(length, k):
        tensors = {"x": zeros(1, length, 3, k, dtype=np.float32), "ids": zeros(1, length)}
        return check_request(0, tensors, WIDE).key

    assert key(2, 5) == key(9, 5)
    assert key(2, 5) != key(2, 6)


def test_the_order_in_which_inputs_were_sent_does_not_matter():
    """Neither does whether an input was sent that the backend would have made."""
    a = check_request(0, {"ids": zeros(1, 4), "mask": zeros(1, 4)}, ENCODER)
    b = check_request(0, {"mask": zeros(1, 4), "ids": zeros(1, 4)}, ENCODER)
    c = check_request(0, {"ids": zeros(1, 4)}, ENCODER)
    assert a.key == b.key == c.key


def test_an_optional_input_of_the_graph_may_be_left_out():
    """Such requests run together, and apart from those that send it."""
    layout = layout_of(
        item("ids"), item("extra", (-1,), (1,), ("k",), optional=True), equal_axes=("k",)
    )
    without = check_request(0, {"ids": zeros(1, 4)}, layout)
    assert without.omitted == ("extra",)
    assert without.equal_sizes == (-1,)
    sent = check_request(0, {"ids": zeros(1, 4), "extra": zeros(1, 6)}, layout)
    assert sent.omitted == ()
    assert sent.key != without.key


def test_a_model_without_a_batch_dimension_takes_requests_of_one_row():
    """Its tensors have no batch dimension to count."""
    layout = layout_of(item("ids"), batched=False)
    request = check_request(0, {"ids": zeros(7)}, layout)
    assert (request.rows, request.sizes) == (1, (7,))


def test_flat_inputs_may_have_any_size():
    """What is concatenated is not padded and need not match, but fixed dimensions hold."""
    flat = item("x", (-1, 2), (-1, -1), ("x.0", "x.1"), source="x")
    described = item("n", (), (), (), made="BATCH_ELEMENT_COUNT", source="x")
    layout = layout_of(flat, described, axes=(), concatenated=True)
    a = check_request(0, {"x": zeros(1, 5, 2)}, layout)
    b = check_request(0, {"x": zeros(3, 1, 2)}, layout)
    assert a.key == b.key
    assert (a.rows, b.rows) == (1, 3)
    with pytest.raises(
        InvalidRequest, match=r"'x' has shape \[1, 5, 3\]; expected \[batch, x.0, 2\]"
    ):
        check_request(0, {"x": zeros(1, 5, 3)}, layout)


@pytest.mark.parametrize(
    ("layout", "tensors", "message"),
    [
        pytest.param(ENCODER, {"mask": zeros(1, 3)}, "input 'ids' is missing", id="missing"),
        pytest.param(
            ENCODER,
            {"ids": zeros(1, 3, dtype=np.int32)},
            r"'ids' is int32; expected INT64 \(int64\)",
            id="dtype",
        ),
        pytest.param(
            ENCODER,
            {"ids": zeros(3)},
            r"'ids' has shape \[3\]; expected \[batch, length\]",
            id="rank",
        ),
        pytest.param(
            WIDE,
            {"x": zeros(1, 4, 2, 5, dtype=np.float32), "ids": zeros(1, 4)},
            r"'x' has shape \[1, 4, 2, 5\]; expected \[batch, length, 3, k\]",
            id="fixed size",
        ),
        pytest.param(
            ENCODER,
            {"ids": zeros(1, 3), "mask": zeros(1, 4)},
            "axis 'length' is 4 in input 'mask' and 3 in another",
            id="axis disagrees",
        ),
        pytest.param(
            ENCODER,
            {"ids": zeros(1, 3), "mask": zeros(2, 3)},
            "'mask' has batch 2, another input has 1",
            id="batch disagrees",
        ),
        pytest.param(ENCODER, {"ids": zeros(0, 3)}, "'ids' has batch 0", id="no rows"),
        pytest.param(
            layout_of(item("ids", made="zeros")),
            {},
            "no input tells the size of axis 'length'",
            id="nothing to make it from",
        ),
        pytest.param(
            layout_of(
                item("ids"), item("mask", (-1,), (1,), ("k",), made="mask"), equal_axes=("k",)
            ),
            {"ids": zeros(1, 3)},
            "no input tells the size of axis 'k'",
            id="unpadded axis unknown",
        ),
        pytest.param(
            layout_of(item("x", (3,), (-1,), ("x.1",), made="zeros"), axes=()),
            {},
            "no input that tells its batch size",
            id="nothing sent",
        ),
        pytest.param(
            layout_of(
                item("x", (3,), (-1,), ("x.1",)),
                item("extra", (-1,), (0,), ("length",), optional=True),
            ),
            {"x": zeros(1, 3)},
            "no input tells the size of axis 'length'",
            id="padded axis of an omitted input",
        ),
    ],
)
def test_a_request_that_does_not_fit_is_told_why(layout, tensors, message):
    """The message says what is wrong with which input, and what was expected."""
    with pytest.raises(InvalidRequest, match=message):
        check_request(0, tensors, layout)


def test_a_request_longer_than_the_graph_takes_is_refused():
    """With the axis, the input, what came and the limit; one as long as that passes."""
    layout = replace(ENCODER, limits={"length": 7})
    assert check_request(0, {"ids": zeros(2, 7)}, layout).sizes == (7,)
    with pytest.raises(InvalidRequest, match=r"axis 'length' of 'ids' is 8 long; .* at most 7"):
        check_request(0, {"ids": zeros(2, 8)}, layout)


def test_what_is_too_short_is_refused_where_it_is_not_padded():
    """The graph takes no less; where the axis is padded, a shorter one is, too."""
    layout = replace(WIDE, least={"length": 9, "k": 4})
    given = {"x": zeros(1, 7, 3, 4, dtype=np.float32), "ids": zeros(1, 7)}
    assert check_request(0, given, layout).sizes == (7,)
    given["x"] = zeros(1, 7, 3, 2, dtype=np.float32)
    said = "axis 'k' of 'x' is 2 long; the model takes at least 4"
    with pytest.raises(InvalidRequest, match=said):
        check_request(0, given, layout)


RATE = item("rate", (1,), (-1,), ("",), common=())


def test_requests_run_together_only_with_equal_values_of_what_a_run_has_one_of():
    """Texts among them; the rows of a request have to agree."""
    layout = layout_of(item("x"), RATE)

    def key(*rates):
        x = zeros(len(rates), 3)
        return check_request(0, {"x": x, "rate": np.array(rates)[:, None]}, layout).key

    assert key(8) == key(8, 8) != key(16)
    with pytest.raises(InvalidRequest, match=r"'rate' differs between the rows of this request"):
        key(8, 16)
    whole = layout_of(item("x", (-1,)), RATE, batched=False)
    assert check_request(0, {"x": zeros(3), "rate": zeros(1)}, whole).common == ()


def test_what_fits_is_looked_at_once():
    """Requests of the same shapes are the same; contents and what the host says are each one's."""
    layout = layout_of(item("x"))
    first, second = (check_request(n, {"x": np.full((2, 3), n)}, layout) for n in (0, 1))
    assert len(layout.checked) == 1
    assert (second.index, second.rows, second.sizes) == (1, first.rows, first.sizes)
    assert second.tensors["x"][0, 0] == 1
    with pytest.raises(InvalidRequest, match="'x' is float32; expected INT64"):
        check_request(0, {"x": np.zeros((2, 3), np.float32)}, layout)


def test_remembered_shapes_are_bounded(monkeypatch):
    """Clients may send any."""
    monkeypatch.setattr(request, "REMEMBERED_SHAPES", 2)
    layout = layout_of(item("x"))
    for length in (1, 2, 3, 4, 5):
        check_request(0, {"x": zeros(1, length)}, layout)
        assert len(layout.checked) <= 2


def test_neighbours_that_are_alike_come_as_one():
    """In their order; what differs, or has several rows, comes by itself."""
    shapes = [(1, 3), (1, 3), (1, 5), (2, 3), (2, 3), (1, 3)]
    requests = [check_request(i, {"ids": zeros(*s)}, ENCODER) for i, s in enumerate(shapes)]
    stack, *others = stacked(requests)
    assert [each.index for each in others] == [2, 3, 4, 5]
    assert (stack.index, stack.rows, stack.sizes, stack.key) == (0, 2, (3,), requests[0].key)
    assert [each.index for each in stack.each(0, 2)] == [0, 1]
    assert [each.index for each in stack.each(1, 1)] == [1]
    assert [each.index for each in others[1].each(0, 2)] == [3]


@pytest.mark.parametrize(
    "change",
    [
        {"states": ((2,),)},
        {"wanted": frozenset({"y"})},
        {"omitted": ("mask",)},
        {"equal_sizes": (4,)},
        {"common": (7,)},
    ],
)
def test_neighbours_that_differ_stay_apart(change):
    """Each has states, inputs and outputs of its own."""
    one = check_request(0, {"ids": zeros(1, 3)}, ENCODER)
    assert [each.index for each in stacked([one, replace(one, index=1, **change)])] == [0, 1]
