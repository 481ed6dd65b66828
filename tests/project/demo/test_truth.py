from __future__ import annotations

import math

import numpy as np
import onnx
from demo.traffic import Reply
from demo.truth import largest_difference, nearest, unpadded
from onnx import TensorProto, helper


def reply(index: int, *values: float) -> Reply:
    return Reply(index=index, embedding=np.array(values, np.float32), latency_s=0.001)


def test_nearest_is_the_smallest_angle_whatever_the_lengths():
    """Cosine similarity ignores how long the vectors are, and a row is not its own neighbour."""
    embeddings = np.array([[1, 0], [100, 1], [0, 2], [-1, 1.5]], np.float32)

    best, similarity = nearest(embeddings)

    assert best.tolist() == [1, 0, 3, 2]
    assert np.allclose(similarity[2], 1.5 / math.hypot(1, 1.5))


def test_largest_difference_compares_each_reply_with_its_own_row():
    """Replies come in any order and several times."""
    truth = np.array([[0.0, 1.0], [1.0, 0.0]], np.float32)
    replies = [reply(1, 1.0, 0.25), reply(0, 0.0, 1.0), reply(1, 1.0, 0.0)]

    assert largest_difference(replies, truth) == 0.25


def test_a_nan_anywhere_is_the_largest_difference():
    """NaN must not hide behind a number that came first or later."""
    truth = np.zeros((2, 2), np.float32)
    for replies in (
        [reply(0, 0, math.nan), reply(1, 1, 1)],
        [reply(1, 1, 1), reply(0, math.nan, 0)],
    ):
        assert math.isnan(largest_difference(replies, truth))


def test_unpadded_runs_every_row_alone(tmp_path):
    """The graph sees one row at its own length and a mask of ones."""
    nodes = [
        helper.make_node("Mul", ["input_ids", "attention_mask"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis"], ["sentence_embedding"], keepdims=1),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask", "sentence_embedding")
    ]
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "sum", values[:2], values[2:], [axis])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[opset]), tmp_path / "sum.onnx")

    found = unpadded(tmp_path / "sum.onnx", [np.array([1, 2, 3]), np.array([10])])

    assert found.tolist() == [[6], [10]]
