"""Parts of OpenVINO's graphs."""

import numpy as np
import pytest

openvino = pytest.importorskip("openvino")

from openvino import opset13  # noqa: E402

from ge_backend.engines.ov.nodes import operators_of, replace, whole  # noqa: E402


def relu():
    x = opset13.parameter([-1], np.float32, name="x")
    made = opset13.relu(x)
    made.output(0).get_tensor().set_names({"y"})
    return openvino.Model([opset13.result(made)], [x]), made


def test_what_replaces_an_operator_has_its_name_and_readers():
    """Clients go on to find the output under it."""
    model, made = relu()
    replace(made, [opset13.negative(made.input_value(0)).output(0)])
    model.validate_nodes_and_infer_types()
    assert [port.get_any_name() for port in model.outputs] == ["y"]
    assert {one.get_type_name() for one in model.get_ops()} == {"Parameter", "Negative", "Result"}


def test_operators_of_branches_are_among_all():
    """Those of both."""
    model, _ = relu()
    inner, other = relu()[0], relu()[0]
    chosen = opset13.if_op(opset13.constant(np.array(True)))
    chosen.set_then_body(inner)
    chosen.set_else_body(other)
    x = model.get_parameters()[0]
    chosen.set_input(x.output(0), inner.get_parameters()[0], other.get_parameters()[0])
    out = chosen.set_output(inner.get_results()[0], other.get_results()[0])
    whole_model = openvino.Model([opset13.result(out)], [x])
    kinds = [one.get_type_name() for one in operators_of(whole_model)]
    assert kinds.count("Relu") == 2


def test_whole_numbers_are_of_64_bits():
    """As ONNX has its axes and shapes."""
    assert whole([1, 2]).get_element_type() == openvino.Type.i64
    assert list(whole(3).get_output_shape(0)) == []
