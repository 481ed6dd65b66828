"""Requests of every kind through the real server, against what one request alone would get."""

import contextlib
import json
import queue
import signal
from pathlib import Path

import ml_dtypes
import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from onnx import TensorProto
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from builders.graphs import (
    RAGGED,
    TABLE,
    VOCABULARY,
    WIDTH,
    masked_mean,
    mean_of,
    non_zero,
    parameters,
    plus_one,
    token_rows,
    write_model,
)
from builders.metrics import metric
from builders.null_models import comes_true
from builders.servers import server_options
from builders.standstill import standing_still
from ge_backend.tensors import DATA_TYPES
from ge_tools.tritonserver.installation import find_server
from ge_tools.tritonserver.server import TritonServer

NOTHING = contextlib.nullcontext()
ONNX_TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "BYTES": TensorProto.STRING,
}
BUCKETS = parameters(buckets__rows="1,2,4,8", buckets__sequence="8,16,32,64")
MEAN = f"""
max_batch_size: 16
input [ {{ name: "ids" data_type: TYPE_INT64 {RAGGED} }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
dynamic_batching {{ max_queue_delay_microseconds: 20000 }}
"""
TOKENS = MEAN.replace(f"[ {WIDTH} ]", f"[ -1, {WIDTH} ]")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server with all models of this file."""
    models = tmp_path_factory.mktemp("models")
    write_model(models, "mean", MEAN + BUCKETS, masked_mean())
    write_model(models, "mean_counted", MEAN + BUCKETS, masked_mean())
    write_model(models, "mean_strict", MEAN + BUCKETS + parameters(overflow="error"), masked_mean())
    write_model(models, "mean_two", MEAN + "instance_group [ { count: 2 } ]", masked_mean())
    write_model(models, "mean_inline", MEAN + parameters(executor="inline"), masked_mean())
    write_model(models, "tokens", TOKENS + BUCKETS, token_rows())
    write_model(models, "empty_config", "", masked_mean())
    write_model(models, "found", "", non_zero())
    for name, kind in ONNX_TYPES.items():
        write_model(models, f"echo_{name}", "", plus_one(kind))
    write_model(models, "broken_parameter", MEAN + parameters(bucket="1"), masked_mean())
    write_model(models, "broken_dtype", MEAN.replace("TYPE_INT64", "TYPE_INT32"), masked_mean())
    write_model(models, "broken_file", MEAN, b"not a model")
    write_model(models, "broken_missing", MEAN)
    options = server_options(
        models,
        log_file=tmp_path_factory.mktemp("log") / "server.log",
        arguments=("--exit-on-error=false", "--strict-readiness=false"),
    )
    with TritonServer(find_server(), options) as running:
        yield running


def tensors(module=grpcclient, **arrays):
    """Return client inputs for arrays by name."""
    inputs = []
    for name, array in arrays.items():
        item = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        item.set_data_from_numpy(array)
        inputs.append(item)
    return inputs


def together(client, model, requests, sending=NOTHING):
    """Send requests at once; return results or exceptions, in order.

    `sending` is entered while they are sent.
    """
    ready = client.get_model_repository_index(as_json=True)["models"]
    reason = {item["name"]: item.get("reason") for item in ready}[model]
    assert client.is_model_ready(model), reason
    done = queue.Queue()
    with sending:
        for index, arrays in enumerate(requests):
            client.async_infer(
                model,
                tensors(**arrays),
                lambda result, error, index=index: done.put((index, error or result)),
            )
    return [
        answer for _, answer in sorted((done.get(timeout=60) for _ in requests), key=lambda x: x[0])
    ]


def random_ids(seed, count, longest=64, rows=(1, 4)):
    """Return requests of unequal lengths, some with a batch of their own."""
    generator = np.random.default_rng(seed)
    return [
        generator.integers(
            0, VOCABULARY, (int(generator.integers(*rows)), int(generator.integers(1, longest + 1)))
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("model", ["mean", "mean_two", "mean_inline", "empty_config"])
def test_ragged_requests_equal_requests_alone(client, model):
    """Many lengths and client batches at once give what each request alone would get."""
    requests = random_ids(1, 60)
    answers = together(client, model, [{"ids": ids} for ids in requests])
    for ids, answer in zip(requests, answers, strict=True):
        np.testing.assert_allclose(answer.as_numpy("y"), mean_of(ids), rtol=1e-5, atol=1e-6)


def test_outputs_are_cut_back_to_real_lengths(client):
    """An output axis that follows the ragged one comes back without padding, bit for bit."""
    requests = random_ids(2, 40)
    answers = together(client, "tokens", [{"ids": ids} for ids in requests])
    for ids, answer in zip(requests, answers, strict=True):
        assert np.array_equal(answer.as_numpy("y"), TABLE[ids])


def test_unequal_requests_really_share_batches(client, server):
    """Requests of different lengths are batched, and padding is counted."""
    requests = random_ids(3, 64, rows=(1, 2))
    sending = standing_still(server)
    together(client, "mean_counted", [{"ids": ids} for ids in requests], sending)

    def counted(name):
        return metric(server, name, model="mean_counted")

    real = sum(ids.size for ids in requests)
    assert comes_true(
        lambda: (counted("ge_requests_total"), counted("ge_elements_real_total")) == (64, real)
    )
    assert 0 < counted("ge_batches_total") <= 32
    assert comes_true(
        lambda: real <= counted("ge_elements_run_total") <= counted("ge_elements_longest_total")
    )
    assert real < counted("ge_elements_longest_total")


def test_a_mask_from_the_client_is_used(client):
    """A mask that the client sends is padded, not replaced."""
    ids = np.array([[5, 6, 7, 8]])
    mask = np.array([[1, 1, 0, 0]])
    answers = together(client, "empty_config", [{"ids": ids, "attention_mask": mask}] * 3)
    for answer in answers:
        np.testing.assert_allclose(answer.as_numpy("y"), mean_of(ids[:, :2]), rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in DATA_TYPES if name != "BF16"])
@pytest.mark.parametrize("shape", [(1, 3), (2, 5), (1, 0)])
def test_every_dtype_comes_back(client, name, shape):
    """Each element type goes in and out unchanged, empty tensors too."""
    generator = np.random.default_rng(3)
    if name == "BYTES":
        values = np.array([b"", b"a", "ü".encode(), b"long " * 50], dtype=object)
        array = generator.choice(values, shape).astype(object)
    else:
        array = generator.integers(0, 2, shape).astype(DATA_TYPES[name].numpy)
    answer = client.infer(f"echo_{name}", tensors(x=array)).as_numpy("y")
    assert answer.dtype == array.dtype
    assert np.array_equal(answer, array)


def test_bf16_comes_back(client):
    """BF16, which numpy itself does not have, comes back bit for bit."""
    values = np.array([[0.5, -1.0, 3.0], [1e30, 0.0, -2.5]]).astype(ml_dtypes.bfloat16)
    item = grpcclient.InferInput("x", [2, 3], "BF16")
    item.set_data_from_numpy(values)
    answer = client.infer("echo_BF16", [item]).as_numpy("y")
    assert np.array_equal(answer.astype(np.float32), values.astype(np.float32))


def test_output_of_unknown_size(client):
    """An output whose size only the run tells is returned whole."""
    for values in ([0, 1, 0, 2], [0, 0], [3] * 50):
        x = np.array(values, np.float32)
        assert np.array_equal(client.infer("found", tensors(x=x)).as_numpy("y"), [np.nonzero(x)[0]])


def test_http_works_as_well(server):
    """The same model over HTTP."""
    with httpclient.InferenceServerClient(server.http) as http:
        ids = random_ids(5, 1)[0]
        answer = http.infer("mean", tensors(httpclient, ids=ids))
        np.testing.assert_allclose(answer.as_numpy("y"), mean_of(ids), rtol=1e-5)


def test_metadata_of_an_empty_configuration(client):
    """Inputs, outputs and batching are read from the model file."""
    config = client.get_model_config("empty_config", as_json=True)["config"]
    assert config["max_batch_size"] == 32
    assert [item["name"] for item in config["input"]] == ["ids", "attention_mask"]
    assert all(item["allow_ragged_batch"] for item in config["input"])
    assert config["input"][1]["optional"] is True
    assert "dynamic_batching" in config


REFUSED = {
    "wrong dtype": ({"ids": np.zeros((1, 3), np.int32)}, "data-type is 'INT32'"),
    "wrong rank": ({"ids": np.zeros((1, 3, 2), np.int64)}, "unexpected shape"),
    "wrong name": ({"idz": np.zeros((1, 3), np.int64)}, "idz"),
    "too many rows": ({"ids": np.zeros((17, 3), np.int64)}, "<= 16"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_requests_are_refused(client, case):
    """What the model cannot take is INVALID_ARGUMENT, with the reason."""
    arrays, text = REFUSED[case]
    with pytest.raises(InferenceServerException, match=text) as caught:
        client.infer("mean", tensors(**arrays))
    assert "INVALID_ARGUMENT" in str(caught.value.status())


def test_disagreeing_inputs_are_refused(client):
    """Two inputs that share an axis but not its size: INVALID_ARGUMENT, both sizes named."""
    arrays = {"ids": np.zeros((1, 3), np.int64), "attention_mask": np.ones((1, 4), np.int64)}
    with pytest.raises(InferenceServerException, match=r"axis 'sequence' is 4.* and 3") as caught:
        client.infer("empty_config", tensors(**arrays))
    assert "INVALID_ARGUMENT" in str(caught.value.status())


def test_one_bad_request_among_good_ones(client):
    """An index outside the table fails its own request; its neighbours get their answers."""
    requests = random_ids(6, 12, rows=(1, 2))
    requests[5][0, 0] = VOCABULARY + 7
    answers = together(client, "mean", [{"ids": ids} for ids in requests])
    for index, (ids, answer) in enumerate(zip(requests, answers, strict=True)):
        if index == 5:
            assert isinstance(answer, InferenceServerException)
        else:
            np.testing.assert_allclose(answer.as_numpy("y"), mean_of(ids), rtol=1e-5, atol=1e-6)


def test_overflow_runs_unpadded_and_is_counted(client, server):
    """By default a request beyond the largest bucket runs at its own shape."""
    before = metric(server, "ge_unplanned_shapes_total", model="mean")
    ids = random_ids(7, 1, rows=(2, 3))[0]
    long = np.tile(ids, (1, 80))[:, :70]
    short = random_ids(8, 6)
    answers = together(client, "mean", [{"ids": ids} for ids in [long, *short]])
    for ids, answer in zip([long, *short], answers, strict=True):
        np.testing.assert_allclose(answer.as_numpy("y"), mean_of(ids), rtol=1e-5, atol=1e-6)
    assert comes_true(
        lambda: metric(server, "ge_unplanned_shapes_total", model="mean") == before + 1
    )


def test_overflow_can_be_an_error(client):
    """With `overflow: error` it is INVALID_ARGUMENT and names the limit; neighbours go on."""
    requests = [np.zeros((1, 65), np.int64), *random_ids(9, 5)]
    answers = together(client, "mean_strict", [{"ids": ids} for ids in requests])
    assert "INVALID_ARGUMENT" in str(answers[0].status())
    assert "axis 'sequence' is 65, the largest bucket is 64" in answers[0].message()
    for ids, answer in zip(requests[1:], answers[1:], strict=True):
        np.testing.assert_allclose(answer.as_numpy("y"), mean_of(ids), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("broken_parameter", "parameter 'bucket' is unknown; known are"),
        ("broken_dtype", "TYPE_INT32 in config.pbtxt and TYPE_INT64 in the graph"),
        ("broken_file", "model.onnx"),
        ("broken_missing", "looked for model.onnx"),
    ],
)
def test_a_model_that_cannot_be_served_says_why(client, model, reason):
    """It is not ready, the index holds the reason, and the other models serve."""
    assert not client.is_model_ready(model)
    index = client.get_model_repository_index(as_json=True)["models"]
    told = next(item["reason"] for item in index if item["name"] == model)
    assert reason in told


def executors(server):
    """Return the server's executor processes, wherever they hang in the process tree."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if "ge_backend.executor.process.main" in line and str(server.directory.run) in line:
            found.append(process)
    return found


def test_one_executor_for_all_models(client, server):
    """All models and instances share one process per device."""
    together(client, "mean_two", [{"ids": ids} for ids in random_ids(10, 8)])
    assert len(executors(server)) == 1


def test_killed_executor_is_replaced_under_load(client, server):
    """Killed in mid-flight: every request is answered or fails UNAVAILABLE; later ones succeed."""
    victim = executors(server)[0]
    requests = random_ids(11, 200)
    done = queue.Queue()
    for index, ids in enumerate(requests):
        client.async_infer(
            "mean_two",
            tensors(ids=ids),
            lambda result, error, index=index: done.put((index, result, error)),
        )
        if index == 60:
            victim.send_signal(signal.SIGKILL)
    for index, result, error in (done.get(timeout=60) for _ in requests):
        if error is not None:
            assert "UNAVAILABLE" in str(error.status())
        else:
            np.testing.assert_allclose(
                result.as_numpy("y"), mean_of(requests[index]), rtol=1e-5, atol=1e-6
            )
    ids = random_ids(12, 1)[0]
    for model in ("mean_two", "mean", "tokens", "empty_config"):
        assert client.infer(model, tensors(ids=ids)).as_numpy("y") is not None
    fresh = executors(server)
    assert len(fresh) == 1
    assert fresh[0].pid != victim.pid
    assert comes_true(lambda: metric(server, "ge_executor_restarts_total", model="mean_two") >= 1)


def test_server_stop_leaves_nothing(tmp_path):
    """After a stop there is no process, socket or shared-memory file of the server."""
    write_model(tmp_path, "mean", MEAN + parameters(executor="process"), masked_mean())
    with TritonServer(find_server(), server_options(tmp_path)) as server:
        with grpcclient.InferenceServerClient(server.grpc) as client:
            client.infer("mean", tensors(ids=np.zeros((1, 3), np.int64)))
        family = psutil.Process(server.pid).children(recursive=True) + executors(server)
        assert executors(server)
        directory, prefix = server.directory.run, server.directory.shm_prefix
    assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not [path for path in Path("/dev/shm").iterdir() if path.name.startswith(prefix)]
    assert not directory.exists()


def test_json_config_has_the_keys_we_read(client):
    """The host's field names, on which `model/config/model.py` rests."""
    config = client.get_model_config("mean", as_json=True)["config"]
    assert json.dumps(config).count("allow_ragged_batch") == 1
    assert config["parameters"]["buckets.rows"] == {"string_value": "1,2,4,8"}
