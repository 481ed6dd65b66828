"""What is served of a graph that is loaded."""

from types import SimpleNamespace

import pytest

from builders.host_config import config_of, tensor
from ge_backend.errors import GraphFailed
from ge_backend.model.layout.layout import InputLayout, Layout
from ge_backend.serving.warmup.shaped import ShapedModel, with_equal_axis_size
from ge_backend.serving.warmup.warmup import first_cost, warm_up
from ge_backend.tensors import ANY_SHAPE, DATA_TYPES, Signature, TensorSpec


@pytest.mark.parametrize(("largest", "rows"), [({}, 8), ({"batch": 4}, 4), ({"batch": 16}, 8)])
def test_runs_have_no_more_rows_than_the_file_takes(largest, rows):
    """Whatever config.pbtxt says of requests, which are cut."""
    x, y = (
        TensorSpec(name=name, dtype=DATA_TYPES["FP32"], dims=(-1, 3), axes=("batch", ""))
        for name in "xy"
    )
    session = SimpleNamespace(
        shape_policy=ANY_SHAPE,
        signature=Signature(inputs=(x,), outputs=(y,), axis_limits=largest),
    )
    config = config_of(inputs=[tensor("x", [3])], max_batch_size=8, parameters={"warmup": "off"})
    model = ShapedModel.of(config, session, SimpleNamespace())
    assert model.config.max_batch_size == rows
    assert max(bucket[0] for bucket in model.grid.entries) == rows


def layout_of(channels=1, dtype="FP32", **more):
    image = InputLayout(
        name="x",
        dtype=DATA_TYPES[dtype],
        dims=(channels, -1, -1),
        axes=(-1, 0, 1),
        names=("", "h", "w"),
        fill=0.0,
        made="",
    )
    return Layout(
        batched=True, axes=(), equal_axes=("h", "w"), inputs=(image,), outputs=(), limits={}, **more
    )


class Convolution:
    """A session whose graph takes what is at least so large; it notes the sizes of its runs."""

    shape_policy = ANY_SHAPE

    def __init__(self, least):
        self.least, self.sizes, self.most_rows = least, [], 0

    def prepare(self, inputs, repeats, *, alone=True):
        self.sizes.append(inputs[0].shape[2:])
        if min(self.sizes[-1]) < self.least:
            raise GraphFailed(f"Invalid input shape: {self.sizes[-1]}")
        return SimpleNamespace(cost_ns=1, cached=False, outputs={})


@pytest.mark.parametrize(
    ("least", "size"), [(1, 16), (17, 64), (600, 1024)], ids=["any", "small", "large"]
)
def test_the_first_size_that_runs_is_taken(least, size, caplog):
    """Without a word: what is tried and does not run says nothing about the model."""
    assert with_equal_axis_size(Convolution(least), layout_of(), (1,)).equal_axis_size == size
    assert caplog.text == ""


def test_where_none_runs_it_is_said_once_and_nothing_is_measured(caplog):
    """Costs follow what requests take."""
    session = Convolution(5000)
    layout = with_equal_axis_size(session, layout_of(), (1,))
    tried = len(session.sizes)
    assert first_cost(session, layout, (1,)) == {}
    assert warm_up(session, layout, [(4,), (1,)], 1) == {}
    assert len(session.sizes) == tried
    (record,) = caplog.records
    assert "at any size that was tried" in record.message
    assert record.message.endswith("Invalid input shape: (16, 16)")


def test_sizes_that_would_fill_memory_are_not_tried():
    """An image of that many channels is never so large; of each id a graph makes much more."""
    session = Convolution(5000)
    with_equal_axis_size(session, layout_of(channels=64), (1,))
    assert session.sizes == [(16, 16), (64, 64), (256, 256)]
    ids = Convolution(5000)
    with_equal_axis_size(ids, layout_of(dtype="INT64"), (1,))
    assert ids.sizes == [(16, 16), (64, 64)]


def test_nothing_is_tried_where_the_sizes_are_known():
    """As where config.pbtxt fixes them."""
    session, layout = Convolution(1), layout_of(sizes={"h": 8, "w": 8})
    assert with_equal_axis_size(session, layout, (1,)) is layout
    assert session.sizes == []
