"""Samples have values in which a difference between engines shows, and that the graph takes."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from builders.graphs import TABLE, VOCABULARY, WIDTH, graph
from ge_backend.device.base import GraphSource
from ge_backend.errors import GraphFailed
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.inline import connect_inline
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.layout import Layout, OutputLayout, build_layout
from ge_backend.serving.assumptions.comparison import difference, run_once, sample_of
from ge_backend.tensors import DATA_TYPES, float32_to_bf16

pytest.importorskip("onnxruntime")

LENGTH = 16
BUCKET = (4, LENGTH)


def looked_up():
    """Take ids, kind, attention_mask [batch, length], x, count -> y: of two tables, and more."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["a"]),
        helper.make_node("Gather", ["kinds", "kind"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "real"], ["xs"]),
        helper.make_node("Unsqueeze", ["xs", "last"], ["xs3"]),
        helper.make_node("Add", ["rows", "xs3"], ["y"]),
    ]
    ids = [(n, TensorProto.INT64, ["batch", "length"]) for n in ("ids", "kind", "attention_mask")]
    return graph(
        nodes,
        [*ids, ("x", TensorProto.FLOAT, ["batch", "length"])],
        [("y", TensorProto.FLOAT, ["batch", "length", WIDTH])],
        [("table", TABLE), ("kinds", TABLE[:2]), ("last", np.array([-1]))],
    )


@pytest.fixture
def opened(tmp_path):
    """A function that loads a graph and returns its session and layout."""
    sessions = []

    def open_(model, inputs, dims=(-1, WIDTH), most=4):
        (tmp_path / "model.onnx").write_bytes(model)
        declared = [
            {"name": name, "data_type": dtype, "dims": [*size], "allow_ragged_batch": -1 in size}
            for name, dtype, size in inputs
        ]
        document = {
            "name": "m",
            "max_batch_size": most,
            "input": declared,
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [*dims]}],
        }
        config = ModelConfig.read(document, directory=tmp_path, version="1", environment={})
        source = GraphSource.of(tmp_path / "model.onnx", threads=1)
        session = Session(
            lambda: connect_inline("cpu", 0, 0), source, arena_bytes=1 << 16, on_restart=print
        )
        sessions.append(session)
        return session, build_layout(config, session.signature, static_shapes=False)

    yield open_
    for session in sessions:
        session.close()


TOKENS = [(name, "TYPE_INT64", (-1,)) for name in ("ids", "kind", "attention_mask")]


def test_each_input_has_values_up_to_what_the_graph_takes(opened):
    """Two tables of different lengths; a mask is one of real places."""
    session, layout = opened(looked_up(), [*TOKENS, ("x", "TYPE_FP32", (-1,))])
    inputs, answers = sample_of(session, layout, BUCKET)
    assert 2 < inputs["ids"].max() < VOCABULARY
    assert set(inputs["kind"].reshape(-1)) == {0, 1}
    assert (inputs["attention_mask"] == 1).all()
    assert inputs["x"].std() > 0.5
    expected = TABLE[inputs["ids"]] + TABLE[inputs["kind"]] + inputs["x"][..., None]
    np.testing.assert_allclose(answers["y"], expected, rtol=1e-6)


def test_whole_numbers_that_may_be_sizes_stay_as_warm_up_has_them(opened):
    """A large size could take all memory."""
    model = graph(
        [helper.make_node("Expand", ["one", "size"], ["y"])],
        [("size", TensorProto.INT64, [2])],
        [("y", TensorProto.FLOAT, ["a", "b"])],
        [("one", np.ones(1, np.float32))],
    )
    session, layout = opened(model, [("size", "TYPE_INT64", (2,))], (-1, -1), most=0)
    inputs, answers = sample_of(session, layout, (1,))
    assert not inputs["size"].any()
    assert answers["y"].shape == (0, 0)


def test_a_sample_that_is_refused(opened):
    """The engine's own words."""
    session, layout = opened(looked_up(), [*TOKENS, ("x", "TYPE_FP32", (-1,))])
    inputs, _ = sample_of(session, layout, BUCKET)
    with pytest.raises(GraphFailed, match="out of data bounds"):
        run_once(session, {**inputs, "ids": np.full(BUCKET, VOCABULARY)})


def layout_of(dtype):
    y = OutputLayout(name="y", dtype=DATA_TYPES[dtype], dims=(3,), axes=(-1,), names=("",))
    return Layout(batched=True, axes=(), limits={}, inputs=(), outputs=(y,))


@pytest.mark.parametrize(
    ("dtype", "one", "other", "told"),
    [
        ("FP32", [1.0, 100.0, np.nan], [1.5, 100.0, np.nan], ""),
        ("FP32", [1.0, 100.0, 0.0], [1.0, 98.0, 0.0], "differs by 0.02 of its largest"),
        ("FP32", [np.inf, 1.0, 0.0], [-np.inf, 1.0, 0.0], "is finite in other places"),
        ("FP32", [0.0, 0.0, 0.0], [1e-9, 0.0, 0.0], ""),
        ("INT64", [1, 2, 3], [1, 2, 4], "differs in 1 of 3 elements"),
        ("BYTES", [b"a", b"b", b""], [b"a", b"b", b""], ""),
        ("BYTES", [b"a", b"b", b""], [b"a", b"c", b"d"], "differs in 2 of 3 elements"),
    ],
)
def test_how_answers_differ(dtype, one, other, told):
    """Real numbers by a part of the largest one, all else exactly."""
    kind = DATA_TYPES[dtype].numpy
    pair = [{"y": np.array([values], kind)} for values in (one, other)]
    found = difference(*pair, layout_of(dtype), 1e-2)
    assert (told in found) if told else found == ""


def test_bf16_is_compared_by_its_values():
    """Its bit patterns are far apart where its values are near."""
    pair = [{"y": float32_to_bf16(np.array([[1.0, x, 0.0]]))} for x in (1e-8, -1e-8)]
    assert difference(*pair, layout_of("BF16"), 1e-2) == ""
