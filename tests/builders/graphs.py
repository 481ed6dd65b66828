"""Small ONNX graphs and model folders for tests, made by code."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH, POSITIONS = 100, 4, 16
TABLE = np.random.default_rng(7).normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
RAGGED = "dims: [ -1 ] allow_ragged_batch: true"


def graph(nodes, inputs, outputs, constants=()):
    """Return a serialised model; inputs and outputs are (name, type, dims with names)."""
    built = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*tensor) for tensor in inputs],
        [helper.make_tensor_value_info(*tensor) for tensor in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants],
    )
    model = helper.make_model(built, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model.SerializeToString()


def masked_mean():
    """Take ids, attention_mask [batch, sequence] -> y [batch, WIDTH]: mean of the table's real rows."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["mask3"]),
        helper.make_node("Mul", ["rows", "mask3"], ["real"]),
        helper.make_node("ReduceSum", ["real", "one"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "one"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["y"]),
    ]
    return graph(
        nodes,
        [(n, TensorProto.INT64, ["batch", "sequence"]) for n in ("ids", "attention_mask")],
        [("y", TensorProto.FLOAT, ["batch", WIDTH])],
        [("table", TABLE), ("last", np.array([-1])), ("one", np.array([1]))],
    )


def token_sums(width):
    """Take input_ids, attention_mask [batch, sequence] -> sentence_embedding [batch, width]."""
    nodes = [
        helper.make_node("Mul", ["input_ids", "attention_mask"], ["real"]),
        helper.make_node("ReduceSum", ["real", "one"], ["total"], keepdims=1),
        helper.make_node("Cast", ["total"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["number", "ones"], ["sentence_embedding"]),
    ]
    return graph(
        nodes,
        [(n, TensorProto.INT64, ["batch", "sequence"]) for n in ("input_ids", "attention_mask")],
        [("sentence_embedding", TensorProto.FLOAT, ["batch", width])],
        [("one", np.array([1])), ("ones", np.ones((1, width), np.float32))],
    )


def mean_of(ids):
    """What `masked_mean` answers for ids [rows, length] without padding."""
    return TABLE[ids].mean(axis=1)


def token_rows(table=TABLE):
    """Take ids [batch, sequence] -> y [batch, sequence, WIDTH]: the table's rows."""
    return graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        [("ids", TensorProto.INT64, ["batch", "sequence"])],
        [("y", TensorProto.FLOAT, ["batch", "sequence", WIDTH])],
        [("table", table)],
    )


def with_positions():
    """Take ids [batch, length] -> y: the table's rows, and to each what its position has.

    A table of positions is cut to the length and added, as encoders export it.
    """
    positions = np.arange(POSITIONS, dtype=np.float32)[:, None] * np.ones(WIDTH, np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Shape", ["ids"], ["shape"], start=1, end=2),
        helper.make_node("Slice", ["positions", "zero", "shape"], ["some"]),
        helper.make_node("Add", ["rows", "some"], ["y"]),
    ]
    return graph(
        nodes,
        [("ids", TensorProto.INT64, ["batch", "length"])],
        [("y", TensorProto.FLOAT, ["batch", "length", WIDTH])],
        [("table", TABLE), ("positions", positions), ("zero", np.array([0]))],
    )


def plus_one(kind, dims=("batch", "length")):
    """Take x -> y = x for one element type."""
    return graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", kind, list(dims))],
        [("y", kind, list(dims))],
    )


def transposed(source=("batch", "length"), target=("a", "b")):
    """Take x [batch, length] -> y [length, batch], in a file that calls its dimensions otherwise."""
    return graph(
        [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])],
        [("x", TensorProto.FLOAT, list(source))],
        [("y", TensorProto.FLOAT, list(target))],
    )


def repeated():
    """Take x [batch, length] -> y [twice as many, length]: every row comes again."""
    return graph(
        [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)],
        [("x", TensorProto.FLOAT, ["batch", "length"])],
        [("y", TensorProto.FLOAT, ["a", "length"])],
    )


def scaled():
    """Take x [batch, 3], scale [] -> y = x * scale."""
    return graph(
        [helper.make_node("Mul", ["x", "scale"], ["y"])],
        [("x", TensorProto.FLOAT, ["batch", 3]), ("scale", TensorProto.FLOAT, [])],
        [("y", TensorProto.FLOAT, ["batch", 3])],
    )


def doubled_plus_one(width):
    """Take x [batch, n, width] -> y = 2x + 1."""
    dims = ["batch", "n", width]
    return graph(
        [
            helper.make_node("Add", ["x", "x"], ["twice"]),
            helper.make_node("Add", ["twice", "one"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, dims)],
        [("y", TensorProto.FLOAT, dims)],
        [("one", np.ones((), np.float32))],
    )


def non_zero():
    """Take x [length] -> y [1, found]: positions of what is not zero; only the run tells how many."""
    return graph(
        [helper.make_node("NonZero", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, ["length"])],
        [("y", TensorProto.INT64, [1, "found"])],
    )


def convolution(taps=40):
    """Take x [batch, 1, samples] -> y [batch, 1, places]: sums of so many; fewer do not run."""
    return graph(
        [helper.make_node("Conv", ["x", "ones"], ["y"])],
        [("x", TensorProto.FLOAT, ["batch", 1, "samples"])],
        [("y", TensorProto.FLOAT, ["batch", 1, "places"])],
        [("ones", np.ones((1, 1, taps), np.float32))],
    )


def write_model(repository, name, config="", model=None, filename="model.onnx"):
    """Write a model folder; the configuration begins with the backend."""
    folder = Path(repository) / name / "1"
    folder.mkdir(parents=True)
    if model is not None:
        (folder / filename).write_bytes(model)
    (folder.parent / "config.pbtxt").write_text(f'backend: "ge"\n{config}')


def parameters(**values):
    """Return `parameters` blocks; `__` in a key stands for a dot."""
    return "".join(
        f'parameters {{ key: "{key.replace("__", ".")}" value {{ string_value: "{value}" }} }}\n'
        for key, value in values.items()
    )


def accumulator(dtype=TensorProto.FLOAT):
    """Take x [batch, 1] and the state h -> y = h + x, which is the next state too."""
    return graph(
        [
            helper.make_node("Add", ["x", "h"], ["y"]),
            helper.make_node("Identity", ["y"], ["h_next"]),
        ],
        [("x", dtype, ["batch", 1]), ("h", dtype, ["batch", 1])],
        [("y", dtype, ["batch", 1]), ("h_next", dtype, ["batch", 1])],
    )


def controlled(start, end, ready, name):
    """Take x and controls of these types [batch, 1] -> y [batch, 5]: what came, side by side."""
    given = {"x": TensorProto.FLOAT, "START": start, "END": end, "READY": ready, "ID": name}
    shown = [f"{key}_shown" for key in given]
    casts = [
        helper.make_node("Cast", [key], [f"{key}_shown"], to=TensorProto.FLOAT) for key in given
    ]
    return graph(
        [*casts, helper.make_node("Concat", shown, ["y"], axis=1)],
        [(key, kind, ["batch", 1]) for key, kind in given.items()],
        [("y", TensorProto.FLOAT, ["batch", 5])],
    )


def recurrent(width=4, names=("layers", "batch", "width")):
    """Take x [batch, samples], rate [] and the state [2, batch, width] -> y [batch, 1], state_next.

    An LSTM of one step, as Silero VAD is one: the state's halves are what it gives and its cell, of
    dimensions with these names as far as the file tells of them. All samples count times the rate.
    """
    kind, random = TensorProto.FLOAT, np.random.default_rng(5)
    gates = [
        (name, random.normal(size=shape).astype(np.float32))
        for name, shape in (
            ("w", (1, 4 * width, 1)),
            ("r", (1, 4 * width, width)),
            ("b", (1, 8 * width)),
            ("v", (width, 1)),
        )
    ]
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=1),
        helper.make_node("Cast", ["rate"], ["factor"], to=kind),
        helper.make_node("Mul", ["mean", "factor"], ["level"]),
        helper.make_node("Unsqueeze", ["level", "zero"], ["steps"]),
        helper.make_node("Split", ["state"], ["h", "c"], axis=0),
        helper.make_node(
            "LSTM",
            ["steps", "w", "r", "b", "", "h", "c"],
            ["", "h_next", "c_next"],
            hidden_size=width,
        ),
        helper.make_node("Concat", ["h_next", "c_next"], ["state_next"], axis=0),
        helper.make_node("Squeeze", ["h_next", "zero"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "v"], ["y"]),
    ]
    return graph(
        nodes,
        [
            ("x", kind, ["batch", "samples"]),
            ("state", kind, [2, "batch", width]),
            ("rate", TensorProto.INT64, []),
        ],
        [("y", kind, ["batch", 1]), ("state_next", kind, list(names))],
        [*gates, ("zero", np.array([0]))],
    )


def history():
    """Take x [batch, length] and the state past -> y [batch]: the sum of all that came so far."""
    kind = TensorProto.FLOAT
    return graph(
        [
            helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
            helper.make_node("ReduceSum", ["present", "one"], ["y"], keepdims=0),
        ],
        [("x", kind, ["batch", "length"]), ("past", kind, ["batch", "kept"])],
        [("y", kind, ["batch"]), ("present", kind, ["batch", "all"])],
        [("one", np.array([1]))],
    )


def history_of_means():
    """Take x [batch, length] and the state past -> y [batch]: the mean of all that came so far."""
    kind = TensorProto.FLOAT
    return graph(
        [
            helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
            helper.make_node("ReduceMean", ["present"], ["y"], axes=[1], keepdims=0),
        ],
        [("x", kind, ["batch", "length"]), ("past", kind, ["batch", "kept"])],
        [("y", kind, ["batch"]), ("present", kind, ["batch", "all"])],
    )


def row_sums():
    """Take x [batch, sequence, WIDTH] -> y [batch, WIDTH]: the sum over the sequence."""
    return graph(
        [helper.make_node("ReduceSum", ["x", "one"], ["y"], keepdims=0)],
        [("x", TensorProto.FLOAT, ["batch", "sequence", WIDTH])],
        [("y", TensorProto.FLOAT, ["batch", WIDTH])],
        [("one", np.array([1]))],
    )


def sum_and_difference():
    """Take a, b [batch, WIDTH] -> sum and difference [batch, WIDTH]."""
    kind = TensorProto.FLOAT
    return graph(
        [
            helper.make_node("Add", ["a", "b"], ["sum"]),
            helper.make_node("Sub", ["a", "b"], ["diff"]),
        ],
        [(name, kind, ["batch", WIDTH]) for name in ("a", "b")],
        [(name, kind, ["batch", WIDTH]) for name in ("sum", "diff")],
    )
