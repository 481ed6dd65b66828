"""ONNX graphs of operators that engines are known to compute otherwise than the file says."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ge_backend.device.base import GraphSource
from ge_backend.engines.kinds.cpu import CpuDevice

WIDTH, SIZE = 6, 8
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64


def model(nodes, inputs, outputs, constants=(), opset=22):
    """Return a serialised model; inputs and outputs are (name, type, dims with names)."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*tensor) for tensor in inputs],
        [helper.make_tensor_value_info(*tensor) for tensor in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return made.SerializeToString()


def recurrent(kind, direction="forward", *, lengths="lengths", states=False, **attributes):
    """Take x [time, batch, WIDTH], lengths [batch] -> y of all steps, last [D, batch, SIZE].

    Beside these initial states `h`, and `c` of an LSTM, where it has `states`.
    """
    random = np.random.default_rng(3)
    ways = 2 if direction == "bidirectional" else 1
    shapes = {
        "W": (ways, GATES[kind] * SIZE, WIDTH),
        "R": (ways, GATES[kind] * SIZE, SIZE),
        "B": (ways, 2 * GATES[kind] * SIZE),
    }
    weights = [(n, (random.standard_normal(s) / 2).astype(np.float32)) for n, s in shapes.items()]
    given = (["h"] + ["c"] * (kind == "LSTM")) * states
    node = helper.make_node(
        kind,
        ["x", "W", "R", "B", lengths, *given],
        ["y", "last"],
        hidden_size=SIZE,
        direction=direction,
        **attributes,
    )
    told = [("lengths", INT32, ["batch"])] if lengths else []
    return model(
        [node],
        [
            ("x", FLOAT, ["time", "batch", WIDTH]),
            *told,
            *((name, FLOAT, [ways, "batch", SIZE]) for name in given),
        ],
        [("y", FLOAT, ["time", ways, "batch", SIZE]), ("last", FLOAT, [ways, "batch", SIZE])],
        weights,
    )


def row_lengths():
    """Take frames [batch, time, WIDTH], lengths [batch] -> last [batch, 2 * SIZE] of an LSTM."""
    inner = helper.make_node("Transpose", ["frames"], ["x"], perm=[1, 0, 2])
    random = np.random.default_rng(3)
    shapes = {"W": (2, 4 * SIZE, WIDTH), "R": (2, 4 * SIZE, SIZE), "B": (2, 8 * SIZE)}
    return model(
        [
            inner,
            helper.make_node(
                "LSTM",
                ["x", "W", "R", "B", "lengths"],
                ["", "ends"],
                hidden_size=SIZE,
                direction="bidirectional",
            ),
            helper.make_node("Transpose", ["ends"], ["rows"], perm=[1, 0, 2]),
            helper.make_node("Reshape", ["rows", "shape"], ["last"]),
        ],
        [("frames", FLOAT, ["batch", "time", WIDTH]), ("lengths", INT32, ["batch"])],
        [("last", FLOAT, ["batch", 2 * SIZE])],
        [
            *((n, (random.standard_normal(s) / 2).astype(np.float32)) for n, s in shapes.items()),
            ("shape", np.array([-1, 2 * SIZE])),
        ],
    )


def rotary(width=64):
    """Take positions [batch, length], x [batch, length, width] -> y: x turned by its positions."""
    random = np.random.default_rng(3)
    frequencies = (1 / 10000 ** (np.arange(0, width, 2) / width)).astype(np.float32)
    weights = (random.standard_normal((width, width)) / width**0.5).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["positions"], ["numbers"], to=FLOAT),
        helper.make_node("Unsqueeze", ["numbers", "one"], ["columns"]),
        helper.make_node("MatMul", ["frequencies", "columns"], ["turned"]),
        helper.make_node("Transpose", ["turned"], ["half"], perm=[0, 2, 1]),
        helper.make_node("Concat", ["half", "half"], ["angles"], axis=-1),
        helper.make_node("Cos", ["angles"], ["cos"]),
        helper.make_node("Sin", ["angles"], ["sin"]),
        helper.make_node("MatMul", ["x", "weights"], ["query"]),
        helper.make_node("Mul", ["query", "cos"], ["first"]),
        helper.make_node("Mul", ["query", "sin"], ["second"]),
        helper.make_node("Add", ["first", "second"], ["rotated"]),
        helper.make_node("MatMul", ["rotated", "weights"], ["y"]),
    ]
    rows = ["batch", "length"]
    return model(
        nodes,
        [("positions", INT64, rows), ("x", FLOAT, [*rows, width])],
        [("y", FLOAT, [*rows, width])],
        [
            ("one", np.array([1])),
            ("frequencies", frequencies[None, :, None]),
            ("weights", weights),
        ],
    )


def with_several_names(folder):
    """Write an IR [N, 4] -> [N, 4] whose input is `input_0` and `/Cast_output_0`; the output is y.

    As `openvino.convert_model` makes one of a Cast that changes nothing. That reports the use to its
    makers, by a process that is forked beside this one and keeps what is just being written open:
    a server's stub could not be started.
    """
    import openvino
    from openvino import opset13 as ops

    given = ops.parameter([-1, 4], np.float32, name="input_0")
    made = ops.relu(given)
    given.output(0).get_tensor().set_names({"input_0", "/Cast_output_0"})
    made.output(0).get_tensor().set_names({"y"})
    folder.mkdir(parents=True, exist_ok=True)
    model = openvino.Model([made], [given], "several")
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)
    return folder / "model.xml"


def weighted():
    """Take ids, weights [batch, sequence] -> y [batch, WIDTH]: the sum of rows by their weights."""
    table = np.random.default_rng(3).standard_normal((50, WIDTH)).astype(np.float32)
    rows = ["batch", "sequence"]
    return model(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("Unsqueeze", ["weights", "last"], ["columns"]),
            helper.make_node("Mul", ["rows", "columns"], ["products"]),
            helper.make_node("ReduceSum", ["products", "one"], ["y"], keepdims=0),
        ],
        [("ids", INT64, rows), ("weights", FLOAT, rows)],
        [("y", FLOAT, ["batch", WIDTH])],
        [("table", table), ("last", np.array([-1])), ("one", np.array([1]))],
    )


def repeated(rank):
    """Take x and times [rank] -> y: x repeated so often along each axis."""
    axes = [f"d{at}" for at in range(rank)]
    return model(
        [helper.make_node("Tile", ["x", "times"], ["y"])],
        [("x", FLOAT, axes), ("times", INT64, [rank])],
        [("y", FLOAT, [f"e{at}" for at in range(rank)])],
    )


def quantised(zero, scale=2e-4):
    """Take x [batch, 8] -> y: of a product what a type of quantised numbers holds."""
    weights = np.random.default_rng(3).standard_normal((8, 8)).astype(np.float32)
    return model(
        [
            helper.make_node("MatMul", ["x", "weights"], ["product"]),
            helper.make_node("QuantizeLinear", ["product", "scale", "zero"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["real"]),
            helper.make_node("MatMul", ["real", "weights"], ["y"]),
        ],
        [("x", FLOAT, ["batch", 8])],
        [("y", FLOAT, ["batch", 8])],
        [("weights", weights), ("scale", np.float32(scale)), ("zero", np.array(zero))],
    )


def pooled(**attributes):
    """Take x [batch, 2, height, width] -> y: the largest of windows."""
    return model(
        [helper.make_node("MaxPool", ["x"], ["y"], **attributes)],
        [("x", FLOAT, ["batch", 2, "height", "width"])],
        [("y", FLOAT, ["batch", 2, "rows", "columns"])],
    )


def answers(folder, content, inputs, *, bucket=False, **source):
    """Return what OpenVINO answers, and what ONNX Runtime does."""
    import onnxruntime

    path = folder / "model.onnx"
    path.write_bytes(content)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    expected = session.run(None, inputs)
    graph = CpuDevice().load(GraphSource.of(path, engine="openvino", threads=1, **source))
    try:
        if bucket:
            graph.compile([{name: array.shape for name, array in inputs.items()}])
            graph.prepare(inputs)
            assert len(graph._narrow.bodies) == 1
        found = graph.run(inputs, {}, exclusive=False)
    finally:
        graph.close()
    return list(found.values()), expected


def same(found, expected, atol=1e-5):
    """Whether all outputs have the same shapes and numbers."""
    return all(
        one.shape == other.shape and np.allclose(one, other, atol=atol)
        for one, other in zip(found, expected, strict=True)
    )


def rows(*shape):
    """Return real numbers; the same ones at every call."""
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)
