"""What is read of an ONNX file without any library."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from ge_backend.errors import ModelError  # noqa: E402
from ge_backend.model.files.onnx_file import (  # noqa: E402
    external_data,
    onnx_axes,
    onnx_inputs,
    onnx_nodes,
    onnx_operators,
    onnx_opset,
    onnx_shapeless,
    onnx_weights,
)


def outside(name, location):
    """Return a tensor whose content is in a file."""
    tensor = numpy_helper.from_array(np.arange(4, dtype=np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("offset", "0"), ("location", location), ("length", "16")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor


def model(nodes, constants=()):
    graph = helper.make_graph(nodes, "g", [], [], list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture
def found(tmp_path):
    """Return a function that writes a model and returns the names of its external files."""

    def found(built, *files):
        for name in files:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"\0" * 16)
        path = tmp_path / "model.onnx"
        path.write_bytes(built if isinstance(built, bytes) else built.SerializeToString())
        result = external_data(path)
        assert all(where == tmp_path / name for name, where in result)
        return [name for name, _ in result]

    return found


def test_weights_in_the_model_itself(found):
    """Their bytes are skipped, even if they look like a name."""
    inner = numpy_helper.from_array(np.frombuffer(b"location weights", np.uint8), "w")
    assert found(model([], [inner])) == []


def test_each_file_once(found):
    """Many tensors share one file; folders are allowed."""
    constants = [outside(f"w{at}", "weights.bin") for at in range(3)]
    constants.append(outside("v", "more/part-2.bin"))
    assert found(model([], constants), "weights.bin", "more/part-2.bin") == [
        "more/part-2.bin",
        "weights.bin",
    ]


def test_tensors_in_nodes_and_subgraphs(found):
    """Constants are attributes of nodes, and branches are graphs of their own."""
    constant = helper.make_node("Constant", [], ["c"], value=outside("", "a.bin"))
    branch = helper.make_graph([constant], "then", [], [], [outside("b", "b.bin")])
    sparse = helper.make_sparse_tensor(
        outside("s", "s.bin"), numpy_helper.from_array(np.arange(4), "at"), [8]
    )
    nodes = [
        helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch),
        helper.make_node("Constant", [], ["d"], sparse_value=sparse),
    ]
    assert found(model(nodes), "a.bin", "b.bin", "s.bin") == ["a.bin", "b.bin", "s.bin"]


def test_a_missing_file_is_named(found):
    """Before the compiler fails on it, in its own way."""
    with pytest.raises(ModelError, match=r"weights are in 'gone\.bin', which is not beside it"):
        found(model([], [outside("w", "gone.bin")]))


@pytest.mark.parametrize(
    "content", [b"", b"not a model", b"\x3a\xff\x01", b"\x3a\xff", b"\x3b", b"\x3a\x02\x2a\x09"]
)
def test_what_is_no_model(found, content):
    """Empty, text, and models that were cut off."""
    with pytest.raises(ModelError, match=r"model\.onnx: not an ONNX model"):
        found(content)


def test_a_missing_model(tmp_path):
    """The operating system's reason is in the message."""
    with pytest.raises(ModelError, match="No such file"):
        external_data(tmp_path / "model.onnx")


def test_all_kinds_of_numbers_are_skipped(found):
    """Floats, doubles and numbers of one to ten bytes lie between what is looked for."""
    node = helper.make_node("Foo", [], ["y"], alpha=1.5, beta=-1, gamma=[2**40])
    built = model([node], [outside("w", "w.bin")])
    built.model_version = 2**62
    tensor = built.graph.initializer.add()
    tensor.dims.extend([1])
    tensor.data_type = TensorProto.DOUBLE
    tensor.double_data.append(2.5)
    assert found(built, "w.bin") == ["w.bin"]


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
def test_a_file_without_names_of_dimensions_is_refused(tmp_path, content):
    """By a message that names it."""
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.onnx: not an ONNX model"):
        onnx_axes(path)


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


def test_a_file_without_operators_is_refused(tmp_path):
    """By a message that names it."""
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model at all")
    with pytest.raises(ModelError, match=r"m\.onnx: not an ONNX model"):
        onnx_operators(path)


def test_inputs_of_any_rank_are_told_from_scalars(tmp_path):
    """A shape of no dimensions is one; what an output's is does not matter."""
    value = helper.make_tensor_value_info
    given = [
        value(name, TensorProto.FLOAT, dims)
        for name, dims in zip("abc", (None, [], ["n"]), strict=True)
    ]
    built = helper.make_graph([], "g", given, [value("y", TensorProto.FLOAT, None)])
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(built).SerializeToString())
    assert onnx_shapeless(path) == ["a"]


def test_operators_with_what_they_are_told(tmp_path):
    """Whole numbers and texts of attributes, and inputs that are left out; functions' as well."""
    node = helper.make_node(
        "Resize", ["x", "", "s"], ["y"], name="r", mode="cubic", axis=-2, ratio=0.5, pads=[1, 2]
    )
    inner = helper.make_node("Relu", ["a"], ["b"])
    built = model([node])
    built.functions.append(helper.make_function("own", "F", ["a"], ["b"], [inner], []))
    path = tmp_path / "m.onnx"
    path.write_bytes(built.SerializeToString())
    resize, relu = onnx_nodes(path)
    assert (resize.operator, resize.name, resize.inputs) == ("Resize", "r", ("x", "", "s"))
    assert resize.attributes == {"mode": "cubic", "axis": -2}
    assert (relu.operator, relu.name, relu.attributes) == ("Relu", "", {})


def test_weights_have_their_types(tmp_path):
    """Those of branches, too; what an attribute holds has no name."""
    inner = numpy_helper.from_array(np.ones(1, np.float16), "half")
    branch = helper.make_graph([node("Neg")], "b", [], [], [inner])
    built = model(
        [node("If", then_branch=branch, else_branch=branch)],
        [
            numpy_helper.from_array(np.ones(3, np.uint8), "bytes"),
            helper.make_tensor("fours", TensorProto.INT4, [2], [1, -1]),
        ],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(built.SerializeToString())
    assert onnx_weights(path) == {
        "bytes": TensorProto.UINT8,
        "fours": TensorProto.INT4,
        "half": TensorProto.FLOAT16,
    }


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_version_of_the_operators(tmp_path, domain):
    """ONNX's own, whatever others a file imports."""
    path = tmp_path / "m.onnx"
    others = [helper.make_opsetid("ai.onnx.ml", 3)]
    for imports, version in ((others, 0), ([*others, helper.make_opsetid(domain, 200)], 200)):
        graph = helper.make_graph([], "g", [], [])
        built = helper.make_model(graph, opset_imports=imports)
        path.write_bytes(built.SerializeToString())
        assert onnx_opset(path) == version
