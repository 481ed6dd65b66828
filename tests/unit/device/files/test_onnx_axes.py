"""The names of dimensions, read without any library."""

import pytest

pytest.importorskip("onnx")
from onnx import TensorProto, helper

from ge_backend.device.files.onnx_axes import onnx_axes, onnx_inputs
from ge_backend.errors import ModelError


def value(name, dims):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def test_inputs_and_outputs_have_the_names_of_their_dimensions(tmp_path):
    """A number has no name, nor has a dimension that is left open."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["s"], ["t"])],
        "names",
        [value("x", ["batch", "länge", 3]), value("s", [])],
        [value("y", ["batch", None, 3]), value("t", [])],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    assert onnx_axes(path) == {
        "x": ("batch", "länge", ""),
        "s": (),
        "y": ("batch", "", ""),
        "t": (),
    }


def test_inputs_come_in_their_order(tmp_path):
    """Weights that are listed among them, as old files do, are none."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["b", "w"], ["y"]), helper.make_node("Neg", ["a"], ["z"])],
        "inputs",
        [value("w", [1]), value("b", ["batch"]), value("a", ["batch"])],
        [value("y", ["batch"]), value("z", ["batch"])],
        [helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    assert onnx_inputs(path) == ["b", "a"]


@pytest.mark.parametrize("content", [b"", b"no model at all", b"\x3a\xff\xff\xff\xff\x0f"])
def test_another_file_is_refused(tmp_path, content):
    """By a message that names it."""
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.onnx: not an ONNX model"):
        onnx_axes(path)
