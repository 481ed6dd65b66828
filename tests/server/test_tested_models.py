"""Models whose files say what does not hold are answered right on a real server, alone or at once."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpcclient
from onnx import TensorProto, helper
from tritonclient.utils import np_to_triton_dtype

from builders.graphs import TABLE, WIDTH, graph

pytestmark = pytest.mark.server

NODE = helper.make_node
IDS, REAL = TensorProto.INT64, TensorProto.FLOAT
DELAY = "dynamic_batching { max_queue_delay_microseconds: 20000 }\n"
TOLERANCE = 1e-4
RANDOM = np.random.default_rng(3)
CONSTANTS = [("table", TABLE), ("one", np.array([1])), ("two", np.array([2]))]


def pooled(names):
    """Take input_ids, attention_mask -> y: the sum of the table's rows that the mask leaves."""
    a, b, c, d = names
    nodes = [
        NODE("Gather", ["table", "input_ids"], ["rows"]),
        NODE("Cast", ["attention_mask"], ["m"], to=REAL),
        NODE("Unsqueeze", ["m", "two"], ["m3"]),
        NODE("Mul", ["rows", "m3"], ["kept"]),
        NODE("ReduceSum", ["kept", "one"], ["y"], keepdims=0),
    ]
    inputs = [("input_ids", IDS, [a, b]), ("attention_mask", IDS, [c, d])]
    return graph(nodes, inputs, [("y", REAL, [a, WIDTH])], CONSTANTS)


def added():
    """Take input_ids, attention_mask, added to the scores of attention -> hidden."""
    nodes = [
        NODE("Gather", ["table", "input_ids"], ["e"]),
        NODE("Transpose", ["e"], ["et"], perm=[0, 2, 1]),
        NODE("MatMul", ["e", "et"], ["scores"]),
        NODE("Squeeze", ["attention_mask", "one"], ["bias"]),
        NODE("Add", ["scores", "bias"], ["biased"]),
        NODE("Softmax", ["biased"], ["p"], axis=-1),
        NODE("MatMul", ["p", "e"], ["hidden"]),
    ]
    inputs = [
        ("input_ids", IDS, ["batch", "sequence"]),
        ("attention_mask", REAL, ["batch", 1, "sequence", "sequence"]),
    ]
    return graph(nodes, inputs, [("hidden", REAL, ["batch", "sequence", WIDTH])], CONSTANTS)


def joined():
    """Take input_ids, a mask over what came before and them, past -> all of it, masked."""
    nodes = [
        NODE("Gather", ["table", "input_ids"], ["rows"]),
        NODE("Concat", ["past", "rows"], ["all"], axis=1),
        NODE("Cast", ["attention_mask"], ["m"], to=REAL),
        NODE("Unsqueeze", ["m", "two"], ["m3"]),
        NODE("Mul", ["all", "m3"], ["y"]),
    ]
    inputs = [
        ("input_ids", IDS, ["batch", "sequence"]),
        ("attention_mask", IDS, ["batch", "total_sequence"]),
        ("past", REAL, ["batch", "past_sequence", WIDTH]),
    ]
    return graph(nodes, inputs, [("y", REAL, ["batch", "total_sequence", WIDTH])], CONSTANTS)


def strided():
    """Take samples and their mask -> frames, a fourth of them, under one name."""
    nodes = [
        NODE("Cast", ["attention_mask"], ["m"], to=REAL),
        NODE("Mul", ["input_values", "m"], ["x"]),
        NODE("Unsqueeze", ["x", "one"], ["x3"]),
        NODE("Conv", ["x3", "w"], ["y"], strides=[4]),
    ]
    inputs = [
        ("input_values", REAL, ["batch", "sequence"]),
        ("attention_mask", IDS, ["batch", "sequence"]),
    ]
    weights = ("w", RANDOM.normal(size=(5, 1, 8)).astype(np.float32))
    return graph(nodes, inputs, [("y", REAL, ["batch", 5, "sequence"])], [*CONSTANTS, weights])


def one(node, dims, out, constants=(), **attributes):
    """Take x -> y, by one operator."""
    nodes = [NODE(node, ["x", *(name for name, _ in constants)], ["y"], **attributes)]
    return graph(nodes, [("x", REAL, [*dims])], [("y", REAL, [*out])], constants)


def ones(*shape):
    return np.ones(shape, np.int64)


def real(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def ids(length):
    return RANDOM.integers(0, len(TABLE), (1, length))


LENGTHS = (3, 9, 5, 17, 40, 12, 7, 100)


# Model -> its graph, what its configuration says, and requests.
def large():
    """Take x -> what is above a hundred, less the mean of it over all rows."""
    nodes = [
        NODE("Sub", ["x", "hundred"], ["less"]),
        NODE("Relu", ["less"], ["over"]),
        NODE("ReduceMean", ["over"], ["mean"], axes=[0]),
        NODE("Sub", ["over", "mean"], ["y"]),
    ]
    tensors = [("x", REAL, ["n", 3])], [("y", REAL, ["n", 3])]
    return graph(nodes, *tensors, [("hundred", np.float32(100))])


LARGE = [{"x": 100 + 10 * np.abs(real(2 + at % 3, 3))} for at in range(12)]
WARMED = """model_warmup [ { name: "one" batch_size: 1 inputs {
  key: "x" value { data_type: TYPE_FP32 dims: [ 3 ] input_data_file: "one" } } } ]
"""
MODELS = {
    "names": (
        pooled(["unk__1", "unk__2", "unk__3", "unk__4"]),
        "",
        [{"input_ids": ids(n), "attention_mask": ones(1, n)} for n in LENGTHS],
    ),
    "no_names": (
        pooled([None] * 4),
        "max_batch_size: 8\n",
        [{"input_ids": ids(n), "attention_mask": ones(1, n)} for n in LENGTHS],
    ),
    "added": (
        added(),
        DELAY,
        [
            {"input_ids": ids(n), "attention_mask": np.zeros((1, 1, n, n), np.float32)}
            for n in LENGTHS
        ],
    ),
    "past": (
        joined(),
        "",
        [
            {
                "input_ids": ids(new),
                "attention_mask": ones(1, old + new),
                "past": real(1, old, WIDTH),
            }
            for old, new in ((0, 5), (1, 1), (7, 1), (40, 3), (100, 1), (7, 1))
        ],
    ),
    "frames": (
        strided(),
        "",
        [{"input_values": real(1, n), "attention_mask": ones(1, n)} for n in (400, 80, 400, 16)],
    ),
    "image": (
        one("ReduceMean", (-1, 3, "?", "?"), (-1, 3), axes=[2, 3], keepdims=0),
        "",
        [{"x": real(1, 3, 48, width)} for width in (192, 48, 192, 64)],
    ),
    "label": (
        one("ReduceSum", ("N", 4), (1,), [("one", np.array([1]))], keepdims=0),
        "",
        [{"x": real(rows, 4)} for rows in (1, 3, 2)],
    ),
    "declared_label": (
        one("ReduceSum", ("N", 4), (1,), [("one", np.array([1]))], keepdims=0),
        "max_batch_size: 0\noutput [ { name: 'y' data_type: TYPE_FP32 dims: [ -1 ] } ]\n",
        [{"x": real(rows, 4)} for rows in (1, 3, 2)],
    ),
    "set": (
        one("Softmax", ("D", 3), ("D", 3), axis=0),
        "",
        [{"x": real(2 + at % 3, 3)} for at in range(12)],
    ),
    "batched_set": (
        one("Softmax", ("D", 3), ("D", 3), axis=0),
        "max_batch_size: 8\n" + DELAY,
        [{"x": real(2 + at % 3, 3)} for at in range(12)],
    ),
    "sampled": (large(), "", LARGE),
    "warmed": (
        large(),
        "max_batch_size: 8\ninput [ { name: 'x' data_type: TYPE_FP32 dims: [ 3 ] } ]\n"
        "output [ { name: 'y' data_type: TYPE_FP32 dims: [ 3 ] } ]\n" + DELAY + WARMED,
        LARGE,
    ),
    "rows": (
        one("Relu", ("unk__1", 4), ("unk__2", 4)),
        "",
        [{"x": real(rows, 4)} for rows in (1, 3, 2)],
    ),
}


@pytest.fixture(scope="module")
def server(triton_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tested")
    for name, (model, config, _) in MODELS.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(model)
        (folder / name / "config.pbtxt").write_text(f'backend: "ge"\n{config}')
    (folder / "sampled" / "samples").mkdir()
    np.savez(folder / "sampled" / "samples" / "one.npz", **LARGE[0])
    (folder / "warmed" / "warmup").mkdir()
    (folder / "warmed" / "warmup" / "one").write_bytes(LARGE[0]["x"][:1].tobytes())
    return triton_server(folder)


def ask(client, model, feeds):
    inputs = []
    for name, array in feeds.items():
        tensor = grpcclient.InferInput(name, [*array.shape], np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    answer = client.infer(model, inputs)
    return {one.name: answer.as_numpy(one.name) for one in answer.get_response().outputs}


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_engine_alone(server, name):
    """One request after the other, and all at once; not one is refused."""
    model, _, requests = MODELS[name]
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    expected = [session.run(outputs, feeds) for feeds in requests]
    with grpcclient.InferenceServerClient(server.grpc) as client, ThreadPoolExecutor(8) as threads:
        alone = [ask(client, name, feeds) for feeds in requests]
        together = list(threads.map(lambda feeds: ask(client, name, feeds), requests * 4))
    for want, got in zip(expected * 5, [*alone, *together], strict=True):
        for output, array in zip(outputs, want, strict=True):
            # What has one value for each row the host declares as [1], so that it comes as a column.
            assert got[output].shape == (array.shape if name != "label" else (len(array), 1))
            np.testing.assert_allclose(got[output].reshape(array.shape), array, atol=TOLERANCE)


def test_what_is_batched_follows_from_the_graph(server):
    """Rows that are independent by whatever names; not those that belong together."""
    with grpcclient.InferenceServerClient(server.grpc) as client:
        sizes = {
            name: client.get_model_config(name).config.max_batch_size
            for name in ("rows", "label", "set", "batched_set", "sampled")
        }
    assert sizes == {"rows": 32, "label": 32, "set": 0, "batched_set": 8, "sampled": 0}
