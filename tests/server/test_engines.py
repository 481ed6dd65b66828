"""The same small model through each engine, on the real server."""

import io
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from builders.graphs import TABLE, VOCABULARY, WIDTH, graph, masked_mean, parameters, write_model
from builders.graphs import scaled as scaled_by
from builders.metrics import metric
from builders.null_models import comes_true
from builders.servers import server_options
from ge_tools.tritonserver.installation import find_server
from ge_tools.tritonserver.server import TritonServer

torch = pytest.importorskip("torch")

from builders.torch_modules import MaskedMean  # noqa: E402

RAGGED_IO = f"""
max_batch_size: 16
input [ {{ name: "ids" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
dynamic_batching {{ max_queue_delay_microseconds: 20000 }}
"""
SCRIPT_IO = f"""
max_batch_size: 16
input [ {{ name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }},
        {{ name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
dynamic_batching {{}}
"""
MEAN_IO = """
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 80 ] allow_ragged_batch: true } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching { }
"""

SCALED_IO = """
max_batch_size: 8
input [
  { name: "x" data_type: TYPE_FP32 dims: [ 3 ] },
  { name: "scale" data_type: TYPE_FP32 dims: [ 1 ] optional: true }
]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
dynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: 8 }
parameters { key: "generate.scale" value { string_value: "3" } }
"""


def mean_of_features():
    """Take x [batch, time, features] -> y [batch, time]; how many features is left open."""
    return graph(
        [helper.make_node("ReduceMean", ["x"], ["y"], axes=[2], keepdims=0)],
        [("x", TensorProto.FLOAT, ["batch", "time", "features"])],
        [("y", TensorProto.FLOAT, ["batch", "time"])],
    )


def scaled():
    """Take x [batch, time] -> y [batch, time], twice as much, and logit_scale []."""
    return graph(
        [
            helper.make_node("Mul", ["x", "scale"], ["y"]),
            helper.make_node("Identity", ["scale"], ["logit_scale"]),
        ],
        [("x", TensorProto.FLOAT, ["batch", "time"])],
        [("y", TensorProto.FLOAT, ["batch", "time"]), ("logit_scale", TensorProto.FLOAT, [])],
        [("scale", np.float32(2))],
    )


def exported(least=1, least_rows=1):
    """Return the bytes of a .pt2 whose names and axes are told."""
    batch = torch.export.Dim("batch", min=least_rows, max=64)
    sequence = torch.export.Dim("sequence", min=least, max=128)
    ids, mask = torch.zeros(6, 5, dtype=torch.int64), torch.ones(6, 5, dtype=torch.int64)
    program = torch.export.export(
        MaskedMean(), (ids, mask), dynamic_shapes=({0: batch, 1: sequence},) * 2
    )
    names = {"inputs": ["ids", "attention_mask"], "outputs": ["y"]}
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={"ge_names.json": json.dumps(names)})
    return buffer.getvalue()


def scripted():
    """Return the bytes of a TorchScript file."""
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(MaskedMean()), buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with one model per engine."""
    models = tmp_path_factory.mktemp("models")
    write_model(models, "onnx", RAGGED_IO, masked_mean())
    write_model(models, "pt2", RAGGED_IO, exported(), "model.pt2")
    write_model(models, "pt2_least", "", exported(least=4), "model.pt2")
    write_model(models, "pt2_rows", "", exported(least_rows=4), "model.pt2")
    equal = RAGGED_IO.replace("allow_ragged_batch: true", "")
    write_model(models, "pt2_equal", equal, exported(least=4), "model.pt2")
    write_model(models, "pt2_empty", "", exported(), "model.pt2")
    write_model(
        models, "pt2_bf16", RAGGED_IO + parameters(precision="bf16"), exported(), "model.pt2"
    )
    write_model(models, "onnx_scalar", "", scaled())
    write_model(models, "pt", SCRIPT_IO, scripted(), "model.pt")
    for engine in ("onnxruntime", "openvino"):
        write_model(
            models, f"open_{engine}", MEAN_IO + parameters(engine=engine), mean_of_features()
        )
        write_model(models, f"rows_{engine}", SCALED_IO + parameters(engine=engine), scaled_by())
        write_model(models, f"whole_{engine}", parameters(engine=engine), scaled_by())
    options = server_options(models, log_file=tmp_path_factory.mktemp("log") / "server.log")
    with TritonServer(find_server(), options) as started:
        yield started


@pytest.fixture(scope="module")
def client(server):
    """A client of that server."""
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        yield connected


def infer(client, model, output="y", **arrays):
    """Return one output of one request."""
    inputs = []
    for name, array in arrays.items():
        kind = "INT64" if array.dtype == np.int64 else "FP32"
        item = grpcclient.InferInput(name, list(array.shape), kind)
        item.set_data_from_numpy(array)
        inputs.append(item)
    return client.infer(model, inputs).as_numpy(output)


@pytest.mark.parametrize(
    ("model", "tolerance"), [("onnx", 1e-6), ("pt2", 1e-6), ("pt2_empty", 1e-6), ("pt2_bf16", 3e-2)]
)
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (3, 30)])
def test_every_engine_gives_the_same(client, model, tolerance, shape):
    """ONNX Runtime and torch agree, bf16 within its precision; masks are made for both."""
    ids = np.random.default_rng(4).integers(0, VOCABULARY, shape)
    np.testing.assert_allclose(infer(client, model, ids=ids), TABLE[ids].mean(1), atol=tolerance)


@pytest.mark.parametrize(
    ("model", "engine"), [("onnx", "onnxruntime"), ("pt2", "torch"), ("open_openvino", "openvino")]
)
def test_the_metrics_tell_which_engine_runs_a_model(server, model, engine):
    """Whether it was named or chosen."""
    assert comes_true(lambda: metric(server, "ge_engine_info", model=model, engine=engine) == 1)


@pytest.mark.parametrize("length", [1, 3, 4, 9])
def test_what_is_shorter_than_the_program_takes_is_padded(client, length):
    """Alone as beside others; where nothing is padded it is refused."""
    ids = np.random.default_rng(5).integers(0, VOCABULARY, (1, length))
    np.testing.assert_allclose(infer(client, "pt2_least", ids=ids), TABLE[ids].mean(1), atol=1e-6)
    if length >= 4:
        assert infer(client, "pt2_equal", ids=ids).shape == (1, WIDTH)
        return
    with pytest.raises(InferenceServerException, match="the model takes at least 4") as caught:
        infer(client, "pt2_equal", ids=ids)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize("rows", [1, 3, 4, 5])
def test_fewer_rows_than_the_program_takes_are_repeated(client, rows):
    """The copies are cut off again."""
    ids = np.random.default_rng(6).integers(0, VOCABULARY, (rows, 7))
    np.testing.assert_allclose(infer(client, "pt2_rows", ids=ids), TABLE[ids].mean(1), atol=1e-6)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_size_that_only_the_configuration_fixes_is_not_padded(client, engine):
    """The graph leaves it open, and would take padding for features."""
    x = np.random.default_rng(1).normal(size=(2, 5, 80)).astype(np.float32)
    np.testing.assert_allclose(infer(client, f"open_{engine}", x=x), x.mean(2), atol=1e-6)


def test_torchscript_is_served_as_declared(client):
    """A .pt has no signature: config.pbtxt declares it, and clients send all of it."""
    ids = np.array([[3, 4, 5]])
    mask = np.array([[1, 1, 0]])
    answer = infer(client, "pt", "OUTPUT__0", ids=ids, attention_mask=mask)
    np.testing.assert_allclose(answer, TABLE[ids[:, :2]].mean(1), atol=1e-6)


def test_an_empty_configuration_takes_limits_from_the_program(client):
    """The batch size and the largest bucket are what torch.export says."""
    config = client.get_model_config("pt2_empty", as_json=True)["config"]
    assert config["max_batch_size"] == 32
    assert [item["name"] for item in config["input"]] == ["ids", "attention_mask"]


def test_an_output_without_dimensions_does_not_keep_the_others_from_being_served(client):
    """The host knows no scalars, so it is left out of what is completed."""
    config = client.get_model_config("onnx_scalar", as_json=True)["config"]
    assert [item["name"] for item in config["output"]] == ["y"]
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(infer(client, "onnx_scalar", x=x), 2 * x)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_an_input_without_dimensions_is_one_for_all_rows_of_a_run(server, client, engine):
    """Requests with equal values share runs, and each gets its own; nobody has to send a number."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = [2, 3, 2, 0.5, None, 3, None, 7]
    with ThreadPoolExecutor(len(expected)) as clients:
        answers = clients.map(
            lambda scale: scaled_rows(client, f"rows_{engine}", x, scale), expected
        )
        for scale, answer in zip(expected, answers, strict=True):
            np.testing.assert_allclose(answer, x * (3 if scale is None else scale))
    with pytest.raises(InferenceServerException, match="'scale' differs between the rows"):
        infer(client, f"rows_{engine}", x=x, scale=np.array([[1], [2]], np.float32))
    answer = infer(client, f"whole_{engine}", x=x, scale=np.array([4], np.float32))
    np.testing.assert_allclose(answer, 4 * x)


def scaled_rows(client, model, x, scale):
    """Ask for x times scale, which is sent with each row where there is one."""
    given = {} if scale is None else {"scale": np.full((len(x), 1), scale, np.float32)}
    return infer(client, model, x=x, **given)
