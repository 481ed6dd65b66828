"""The operators of an ONNX file, read without any library."""

import pytest

pytest.importorskip("onnx")
from onnx import helper

from ge_backend.device.files.onnx_operators import onnx_operators
from ge_backend.errors import ModelError


def node(operator, **attributes):
    return helper.make_node(operator, ["x"], ["y"], **attributes)


def test_nodes_of_the_graph_of_branches_and_of_functions(tmp_path):
    """Each once; what the names of nodes, tensors and attributes say is no operator."""
    branch = helper.make_graph([node("Neg")], "Abs", [], [])
    nodes = [
        node("Relu", name="Floor"),
        node("Relu"),
        node("If", then_branch=branch, else_branch=branch),
        node("LSTM", direction="forward"),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "f", ["x"], ["y"], [node("Ceil")], opsets[:1])
    graph = helper.make_graph(nodes, "g", [], [])
    model = helper.make_model(graph, opset_imports=opsets, functions=[function])
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert onnx_operators(path) == {"Relu", "If", "Neg", "LSTM", "Ceil"}


def test_another_file_is_refused(tmp_path):
    """By a message that names it."""
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model at all")
    with pytest.raises(ModelError, match=r"m\.onnx: not an ONNX model"):
        onnx_operators(path)
