"""Repositories of the C++ GE backend, one word changed: its example on a CPU, cards on NPUs."""

import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import tritonclient.http as httpclient
from onnx import TensorProto, helper

from acl_simulator import MatMul
from acl_simulator.site import SimulatedPython
from builders.cann import fake_cann, runs_of_atc
from builders.graphs import graph, parameters
from builders.metrics import metric
from builders.null_models import comes_true
from builders.simulated_onnx import onnx_of

# As in hicann/triton-inference-server-ge-backend, example/resnet/config.pbtxt; there npu_ge.
CONFIG = """
name: "resnet"
backend: "ge"
max_batch_size: 64

input [
  {
    name: "data"
    data_type: TYPE_FP32
    dims: [3, 224, 224 ]
  }
]
output [
  {
    name: "resnetv24_dense0_fwd"
    data_type: TYPE_FP32
    dims: [1000 ]
  }
]

instance_group [{
  count: 1
}
]

parameters: [
{
  key: "device_ids",
  value: {string_value: "4,5"}
}
]
"""
# The rest of what its manual shows, in one model.
TUNED = CONFIG.replace('"resnet"', '"tuned"') + "".join(
    f'parameters: {{ key: "{key}", value: {{ string_value: "{value}" }} }}\n'
    for key, value in {
        "device_exec_blocks": "8",
        "graph.ge.inputShape": "data:-1,3,224,224",
        "graph.ge.dynamicDims": "1;2;4",
        "graph.ge.dynamicNodeType": "1",
        "ge.aicoreNum": "12|10",
        "session.ge.exec.precision_mode_v2": "fp16",
        "profiling": "0",
    }.items()
)
REFUSED = CONFIG.replace('"resnet"', '"profiled"') + (
    'parameters: { key: "profiling", value: { string_value: "dynamic" } }\n'
)
WEIGHTS = np.random.default_rng(5).normal(size=(3, 1000)).astype(np.float32)


def stand_in():
    """Take data [N, 3, 224, 224] -> resnetv24_dense0_fwd [N, 1000]: channel means times weights."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["data"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["means"]),
        helper.make_node("MatMul", ["means", "weights"], ["resnetv24_dense0_fwd"]),
    ]
    return graph(
        nodes,
        [("data", TensorProto.FLOAT, ["N", 3, 224, 224])],
        [("resnetv24_dense0_fwd", TensorProto.FLOAT, ["N", 1000])],
        [("weights", WEIGHTS)],
    )


@pytest.fixture(scope="module")
def serving(installation, tmp_path_factory):
    """`ge-backend serve --device cpu` over the example; gives its HTTP endpoint and its log."""
    models = tmp_path_factory.mktemp("models")
    log = tmp_path_factory.mktemp("log") / "server.log"
    for name, config in (("resnet", CONFIG), ("tuned", TUNED), ("profiled", REFUSED)):
        folder = models / name / "1"
        folder.mkdir(parents=True)
        (folder.parent / "config.pbtxt").write_text(config)
        (folder / "resnet18-v1-7.onnx").write_bytes(stand_in())  # called as it is downloaded
    command = [
        *(sys.executable, "-m", "ge_tools.main", "serve", "--device", "cpu"),
        *(f"--{name}-port=0" for name in ("http", "grpc", "metrics")),
        *(f"--model-repository={models}", f"--log-file={log}", "--exit-timeout=20"),
        *("--", "--exit-on-error=false", "--strict-readiness=false"),
        *("--model-control-mode=explicit", "--load-model=*"),  # which lets clients see the index
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    http = ""
    for line in process.stdout:
        found = re.match(r"  http +http://(\S+)", line)
        http = found[1] if found else http
        if line.startswith("  metrics"):
            break
    assert http, log.read_text(errors="replace")
    yield http, log
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process.stdout.close()


@pytest.mark.parametrize("model", ["resnet", "tuned"])
def test_the_example_is_served(serving, model):
    """Its client's request, and a batch, get what the graph computes."""
    http, log = serving
    with httpclient.InferenceServerClient(http) as client:
        ready = client.is_model_ready(model)
        assert ready, log.read_text(errors="replace")
        for rows in (1, 3, 7):
            data = np.random.default_rng(rows).random((rows, 3, 224, 224), np.float32)
            item = httpclient.InferInput("data", data.shape, "FP32")
            item.set_data_from_numpy(data)
            wanted = [httpclient.InferRequestedOutput("resnetv24_dense0_fwd")]
            answer = client.infer(model, [item], outputs=wanted).as_numpy(wanted[0].name())
            assert answer.shape == (rows, 1000)
            assert np.allclose(answer, data.mean((2, 3)) @ WEIGHTS, atol=1e-4)


def test_what_has_no_effect_is_in_the_log(serving):
    """Once for each model instance, with the reason."""
    told = (
        "ge resnet: device_ids '4,5' have no effect: GE_DEVICE is 'cpu'",
        "ge tuned: device_exec_blocks and instance_exec_blocks have no effect on a cpu",
        "ge.aicoreNum, session.ge.exec.precision_mode_v2: no effect on cpu",
    )

    def logged():
        return serving[1].read_text(errors="replace")

    assert comes_true(lambda: all(line in logged() for line in told)), logged()
    assert logged().count(told[0]) == 1


def test_what_cannot_be_honoured_is_refused_with_the_reason(serving):
    """The host's index has it, for whoever asks why the model is not there."""
    http, _ = serving
    with httpclient.InferenceServerClient(http) as client:
        assert not client.is_model_ready("profiled")
        models = {entry["name"]: entry for entry in client.get_model_repository_index()}
    assert "an executor runs all models of its device" in models["profiled"]["reason"]
    assert "PROFILING_MODE" in models["profiled"]["reason"]


# Two cards

CARDS = """
backend: "ge"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 8 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
instance_group [ { count: 2 } ]
""" + parameters(
    device_ids="4,5",
    device_exec_blocks="3",
    graph__ge__inputShape="x:-1,8",
    graph__ge__dynamicDims="1;2;8",
    graph__ge__dynamicNodeType="1",
    ge__aicoreNum="12|10",
    session__ge__exec__precision_mode_v2="fp16",
)
HEAD = MatMul(rows=8, columns=3)


@pytest.fixture(scope="module")
def cards(triton_server, tmp_path_factory):
    """A server whose machine has simulated NPUs, and what its compiler was asked."""
    folder = tmp_path_factory.mktemp("cards")
    (folder / "models" / "head" / "1").mkdir(parents=True)
    (folder / "models" / "head" / "config.pbtxt").write_text(CARDS)
    (folder / "models" / "head" / "1" / "model.onnx").write_bytes(onnx_of(HEAD, ("batch", 8)))
    python = SimulatedPython(folder, devices=6)
    server = triton_server(
        folder / "models",
        environment={
            "GE_PYTHON": str(python.path),
            "GE_CACHE_DIR": str(folder / "cache"),
            "ASCEND_HOME_PATH": str(fake_cann(folder / "cann")),
            "FAKE_ATC_RUNS": str(folder / "runs"),
        },
    )
    yield server, folder / "runs"
    assert python.report()["misuses"] == []


def test_both_cards_are_used_and_compiled_for_once(cards):
    """Gears, cores and arithmetic reach the compiler; every batch is answered, wherever it ran."""
    server, runs = cards
    with httpclient.InferenceServerClient(server.http) as client:
        for seed, rows in enumerate((1, 2, 3, 8, 5, 1, 7, 4)):
            x = np.random.default_rng(seed).random((rows, 8), np.float32)
            item = httpclient.InferInput("x", x.shape, "FP32")
            item.set_data_from_numpy(x)
            answer = client.infer("head", [item]).as_numpy("y")
            assert np.allclose(answer, HEAD.expected(x=x)["y"], rtol=1e-5)
    (run,) = runs_of_atc(runs)
    asked = " ".join(map(str, run["arguments"]))
    assert "--dynamic_batch_size=1,2,8" in asked
    assert "--aicore_num=12|10" in asked
    assert "--precision_mode_v2=fp16" in asked
    for card in ("npu:4", "npu:5"):
        assert comes_true(lambda card=card: spent(server, card) > 0)


def spent(server, device):
    """Return the seconds that graphs have run on a device."""
    return metric(server, "ge_run_seconds_total", device=device)
