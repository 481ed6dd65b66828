"""What OpenVINO reads of a file."""

import numpy as np
import pytest

openvino = pytest.importorskip("openvino")
onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from ge_backend.engines.ov.model import cause, read_model, signature_of  # noqa: E402
from ge_backend.errors import ModelError, Unsupported  # noqa: E402


def write(path, element=TensorProto.FLOAT, dims=("batch", "length"), op="Identity"):
    shape = list(dims)
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info("y", element, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    path.write_bytes(model.SerializeToString())
    return path


def test_an_onnx_file_names_its_axes(tmp_path):
    """OpenVINO drops the names, so they are read from the file."""
    path = write(tmp_path / "m.onnx", dims=("batch", 3))
    signature = signature_of(read_model(path), path)
    assert signature.input("x").describe() == "FP32 [batch, 3]"
    assert signature.output("y").describe() == "FP32 [batch, 3]"


def test_a_file_of_openvinos_own_has_sizes_and_types(tmp_path):
    """Its free dimensions have no names; the parameter `axes.<tensor>` gives them some."""
    openvino.save_model(read_model(write(tmp_path / "m.onnx")), tmp_path / "m.xml")
    path = tmp_path / "m.xml"
    signature = signature_of(read_model(path), path)
    assert signature.input("x").dims == (-1, -1)
    assert signature.input("x").axes == ("", "")
    assert signature.output("y").dtype.name == "FP32"


def test_a_file_of_openvinos_own_bounds_its_axes(tmp_path):
    """They get names for it; what is free, or fixed, has none."""
    from openvino import opset13 as ops

    dims = [openvino.Dimension(1, 8), openvino.Dimension(2, -1), openvino.Dimension(), 4]
    x = ops.parameter(openvino.PartialShape(dims), np.float32, name="x")
    openvino.save_model(openvino.Model([ops.relu(x)], [x], "m"), tmp_path / "m.xml")
    signature = signature_of(read_model(tmp_path / "m.xml"), tmp_path / "m.xml")
    assert signature.inputs[0].dims == (-1, -1, -1, 4)
    assert signature.inputs[0].axes == ("x.0", "x.1", "", "")
    assert signature.axis_limits == {"x.0": 8}
    assert signature.axis_least == {"x.1": 2}


def test_tensors_without_a_name_are_numbered(tmp_path):
    """As `openvino.convert_model` leaves the outputs of a torch model."""
    from openvino import opset13 as ops

    a, b = ops.parameter([-1], np.float32, name="a"), ops.parameter([-1], np.float32, name="b")
    model = openvino.Model([ops.add(a, b), ops.subtract(a, b)], [a, b])
    for port in (model.inputs[0], *model.outputs):
        port.get_tensor().set_names(set())
    signature = signature_of(model, tmp_path / "m.xml")
    assert [spec.name for spec in signature.inputs] == ["input_0", "b"]
    assert [spec.name for spec in signature.outputs] == ["output_0", "output_1"]


def test_inputs_of_an_onnx_file_are_named_as_it_names_them(tmp_path):
    """OpenVINO drops an operator that does nothing, and gives its input the name of its output."""
    path = write(tmp_path / "m.onnx", op="Dropout")
    signature = signature_of(read_model(path), path)
    assert signature.inputs[0].describe() == "FP32 [batch, length]"
    assert [spec.name for spec in (*signature.inputs, *signature.outputs)] == ["x", "y"]


def several_names(tmp_path):
    """Write an IR whose input and output have two names each, and return its path."""
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["input_0"], ["/Cast_output_0"], to=TensorProto.FLOAT),
            helper.make_node("Relu", ["/Cast_output_0"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("input_0", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    converted = openvino.convert_model(tmp_path / "m.onnx")
    converted.outputs[0].get_tensor().add_names({"a_second_name"})
    openvino.save_model(converted, tmp_path / "m.xml", compress_to_fp16=False)
    return tmp_path / "m.xml"


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ((), ["input_0", "y"]),
        (("/Cast_output_0",), ["/Cast_output_0", "y"]),
        (("a_second_name", "input_0"), ["input_0", "a_second_name"]),
    ],
)
def test_of_several_names_a_tensor_has_the_one_that_its_file_had(tmp_path, asked, names):
    """Which the converter shows; any other one may be asked for."""
    path = several_names(tmp_path)
    signature = signature_of(read_model(path), path, asked)
    assert [spec.name for spec in (*signature.inputs, *signature.outputs)] == names


@pytest.mark.parametrize(
    ("element", "named"),
    [(TensorProto.DOUBLE, "FP64"), (TensorProto.UINT64, "UINT64"), (TensorProto.STRING, "BYTES")],
)
def test_what_would_be_computed_in_32_bits_is_refused(tmp_path, element, named):
    """The error says which engine computes it as it is."""
    path = write(tmp_path / "m.onnx", element)
    with pytest.raises(Unsupported, match=rf"'x' is {named}, .*onnxruntime"):
        signature_of(read_model(path), path)


def test_a_sign_that_would_be_kept_in_an_unsigned_type_is_refused(tmp_path):
    """A shift of -5, as torch writes it by way of UINT32, was -1 instead of -3."""
    path = tmp_path / "m.onnx"
    x, y = (helper.make_tensor_value_info(name, TensorProto.INT32, ["n"]) for name in "xy")
    held = [numpy_helper.from_array(np.uint32(1), "one")]
    nodes = [
        helper.make_node("Cast", ["x"], ["u"], to=TensorProto.UINT32),
        helper.make_node("BitShift", ["u", "one"], ["v"], direction="RIGHT"),
        helper.make_node("Cast", ["v"], ["y"], to=TensorProto.INT32),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(made.SerializeToString())
    with pytest.raises(Unsupported, match=r"is made UINT32, .*sign.*onnxruntime"):
        signature_of(read_model(path), path)


@pytest.mark.parametrize("element", ["UINT8", "INT8"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_arithmetic_of_8_bits_is_refused(tmp_path, op, element):
    """OpenVINO cuts sums off at 255 and makes 1 of 3 / 5; of 32 bits all is as it should be."""
    with pytest.raises(Unsupported, match=rf"is {element}, .*quotients.*onnxruntime"):
        of_two(tmp_path, op, getattr(TensorProto, element))
    assert of_two(tmp_path, op, TensorProto.INT32).inputs


def test_shifts_of_8_bits_are_refused(tmp_path):
    """OpenVINO makes 4 of 7 >> 1."""
    with pytest.raises(Unsupported, match=r"is UINT8, .*quotients.*onnxruntime"):
        of_two(tmp_path, "BitShift", TensorProto.UINT8, direction="RIGHT")
    assert of_two(tmp_path, "BitShift", TensorProto.UINT32, direction="RIGHT").inputs


def of_two(tmp_path, op, kind, **attributes):
    """Return the signature of an operator of two tensors of a type."""
    rows = [helper.make_tensor_value_info(name, kind, ["batch"]) for name in "xzy"]
    node = helper.make_node(op, ["x", "z"], ["y"], **attributes)
    graph = helper.make_graph([node], "g", rows[:2], rows[2:])
    opsets, path = [helper.make_opsetid("", 17)], tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return signature_of(read_model(path), path)


@pytest.mark.parametrize(("least", "refused"), [(-3.4e38, True), (-1e36, False)])
def test_a_quantised_range_that_is_too_wide_is_refused(tmp_path, least, refused):
    """OpenVINO would take all that lies in it for its least number."""
    held = {"scale": np.float32(-least / 255), "zero": np.uint8(255)}
    rows = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 2]) for n in ("x", "y")]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in held.items()]
    graph = helper.make_graph(nodes, "g", rows[:1], rows[1:], constants)
    path = tmp_path / "m.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    if refused:
        with pytest.raises(Unsupported, match=r"as far apart as those of a mask.*onnxruntime"):
            signature_of(read_model(path), path)
    else:
        compiled = openvino.Core().compile_model(read_model(path), "CPU")
        given = np.array([[0, least]], np.float32)
        np.testing.assert_allclose(compiled([given])[0], given, rtol=1e-2)
        assert signature_of(read_model(path), path).input("x").describe() == "FP32 [batch, 2]"


def test_a_count_of_64_bits_is_no_reason_to_refuse(tmp_path):
    """OpenVINO reads an ArgMax with one; what it finds is what ONNX says."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "columns"])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, ["rows"])
    node = helper.make_node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)
    graph = helper.make_graph([node], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    read = read_model(path)
    assert signature_of(read, path).outputs[0].dtype.name == "INT64"
    rows = np.random.default_rng(0).standard_normal((9, 40)).astype(np.float32)
    found = openvino.compile_model(read, "CPU")(rows)[0]
    assert found.tolist() == rows.argmax(1).tolist()


@pytest.mark.parametrize("inside", ["graph", "branch", "loop"])
@pytest.mark.parametrize(
    ("element", "named"), [(TensorProto.DOUBLE, "FP64"), (TensorProto.UINT64, "UINT64")]
)
def test_so_is_what_a_graph_computes_on_the_way(tmp_path, element, named, inside):
    """Its inputs and outputs are FP32; a branch, or a loop's body, is a graph in an operator."""
    wide = [
        helper.make_node("Cast", ["x"], ["wide"], to=element),
        helper.make_node("Mul", ["wide", "wide"], ["square"]),
        helper.make_node("Cast", ["square"], ["y"], to=TensorProto.FLOAT),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows"])
    on = helper.make_tensor_value_info("on", TensorProto.BOOL, [])
    branch = helper.make_graph(wide, "branch", [], [y])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "other", [], [y])
    chosen = helper.make_node("If", ["on"], ["y"], then_branch=branch, else_branch=other)
    row = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in "xy"]
    body = helper.make_graph(wide, "body", row[:1], row[1:])
    loop = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)
    nodes = {"graph": wide, "branch": [chosen], "loop": [loop]}[inside]
    graph = helper.make_graph(nodes, "g", [x, on], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(Unsupported, match=rf"m\.onnx: .* is {named}, .*onnxruntime"):
        signature_of(read_model(path), path)


@pytest.mark.parametrize("content", [b"", b"not a model"])
def test_a_corrupt_file_is_refused(tmp_path, content):
    """In one line."""
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.onnx: OpenVINO cannot load it") as caught:
        read_model(path)
    assert "\n" not in str(caught.value)


def test_an_unknown_operation_is_named(tmp_path):
    """As OpenVINO names it, without where in its sources."""
    path = write(tmp_path / "m.onnx", op="Unheard")
    with pytest.raises(ModelError, match="Unheard") as caught:
        read_model(path)
    assert "Exception from" not in str(caught.value)


def test_the_cause_of_an_error():
    """The first lines only say in which source files it came up."""
    text = "Exception from src/a.cpp:1:\nException from src/b.cpp:2:\nCheck failed\nfor this\n\n"
    assert cause(RuntimeError(text)) == "Check failed for this"
    assert cause(RuntimeError("")) == "RuntimeError"
    assert cause(RuntimeError("Exception from src/a.cpp:1:")) == "Exception from src/a.cpp:1:"
