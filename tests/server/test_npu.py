"""Offline models on a simulated NPU behind the real server: unequal requests, ensembles, faults."""

import json
import queue
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import np_to_triton_dtype

from acl_simulator import (
    BatchGears,
    DimsGears,
    Encoder,
    ImageGears,
    MatMul,
    Ranges,
    Static,
    Sums,
    write_om,
)
from acl_simulator.graphs import Echo
from acl_simulator.site import SimulatedPython
from builders.cann import fake_cann, runs_of_atc
from builders.graphs import parameters, write_model
from builders.metrics import metric
from builders.null_models import comes_true
from builders.simulated_onnx import onnx_of
from builders.standstill import standing_still

WIDTH, LABELS, VOCABULARY = 16, 3, 100  # rows of 64 bytes can stay on the device
ON_NPU = parameters(device="npu:0")
DELAY = "dynamic_batching { max_queue_delay_microseconds: 20000 }\n"
GEARS = [(1, 16), (4, 16), (8, 16), (1, 64), (4, 64)]
ENCODER, HEAD = Encoder(width=WIDTH, vocabulary=VOCABULARY), MatMul(rows=WIDTH, columns=LABELS)
NAMES = dict.fromkeys(("input_ids", "attention_mask"), ("batch", "sequence"))
ENSEMBLE = f"""
platform: "ensemble"
max_batch_size: 8
input [ {{ name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }} ]
output [ {{ name: "scores" data_type: TYPE_FP32 dims: [ {LABELS} ] }} ]
ensemble_scheduling {{
  step [
    {{ model_name: "encoder" model_version: -1
      input_map {{ key: "input_ids" value: "ids" }} output_map {{ key: "y" value: "pooled" }} }},
    {{ model_name: "head" model_version: -1
      input_map {{ key: "x" value: "pooled" }} output_map {{ key: "y" value: "scores" }} }}
  ]
}}
"""


def encoder_shapes():
    return DimsGears(dict.fromkeys(NAMES, (-1, -1)), [gear * 2 for gear in GEARS])


def write(models, name, config="", files=(), names=None):
    """Write a model on the NPU; `files` are (file name, graph, shapes)."""
    write_model(models, name, config + ON_NPU)
    folder = models / name / "1"
    for file, graph, shapes in files:
        write_om(folder / file, graph, shapes, name=name)
    if names is not None:
        (folder / "model.om.json").write_text(json.dumps({"axes": names}))


def write_all(models):
    om = "model.om"
    write(models, "encoder", DELAY, [(om, ENCODER, encoder_shapes())], NAMES)
    rows = BatchGears({"x": (-1, WIDTH)}, [(1,), (4,), (8,)])
    write(models, "head", DELAY, [(om, HEAD, rows)])
    grid = [
        (f"model.{r}x{n}.om", Sums(), Static({"x": (r, n)})) for r, n in ((1, 8), (4, 8), (4, 32))
    ]
    write(models, "grid", DELAY, grid)
    write(
        models, "image", "", [(om, Echo(), ImageGears({"x": (1, 3, -1, -1)}, [(8, 8), (16, 32)]))]
    )
    padded = """
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] reshape: { shape: [ ] } } ]
"""
    write(models, "padded", padded, [(om, Sums(), Static({"x": (4, 32)}))])
    free = Ranges({"x": ((1, 8), (1, 64))})
    write(models, "free", "", [(om, Sums(), free)], {"x": ["batch", "n"], "y": ["batch"]})
    buckets = parameters(buckets__rows="1,4", buckets__length="8,32")
    write_model(models, "compiled", DELAY + ON_NPU + buckets, onnx_of(Sums()))
    write_model(models, "ensemble")
    (models / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    write_model(models, "fused", DELAY + parameters(fuse="ensemble"))
    chip = write_om(models.parent / "chip.om", Sums(), Static({"x": (1, 8)}), soc="Ascend310P3")
    write_model(models, "broken_chip", ON_NPU, chip.read_bytes(), om)
    write_model(models, "broken_file", ON_NPU, b"nothing", om)
    write_model(models, "broken_index", parameters(device="npu:9"), chip.read_bytes(), om)
    write(models, "broken_buckets", parameters(buckets__rows="1,2"), [(om, HEAD, rows)])


class Bench:
    """The server with its models, a client, and what the simulated NPU reports."""

    def __init__(self, server, python, atc_runs):
        self.server = server
        self.python = python
        self.atc_runs = atc_runs
        self.client = grpcclient.InferenceServerClient(server.grpc)

    def together(self, model, requests):
        """Send requests at once; return results or exceptions, in order."""
        done = queue.Queue()
        with standing_still(self.server):
            for index, arrays in enumerate(requests):
                inputs = []
                for name, array in arrays.items():
                    item = grpcclient.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
                    item.set_data_from_numpy(array)
                    inputs.append(item)
                self.client.async_infer(
                    model, inputs, lambda result, error, at=index: done.put((at, error or result))
                )
        answers = dict(done.get(timeout=60) for _ in requests)
        return [answers[index] for index in range(len(requests))]

    def ask(self, model, output="y", **arrays):
        (answer,) = self.together(model, [arrays])
        assert not isinstance(answer, Exception), answer
        return answer.as_numpy(output)

    def reason(self, model):
        index = self.client.get_model_repository_index(as_json=True)["models"]
        return next(item.get("reason", "") for item in index if item["name"] == model)

    def config(self, model):
        return self.client.get_model_config(model, as_json=True)["config"]

    def tells(self, name, model, value):
        """Return whether a metric, which is published after a while, comes to this value."""
        return comes_true(lambda: metric(self.server, name, model=model) == value)


@pytest.fixture(scope="module")
def bench(triton_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("npu")
    models = folder / "models"
    models.mkdir()
    write_all(models)
    # A run of any gear takes 5 ms, so that rows are better together on a busy machine, too.
    python = SimulatedPython(folder, devices=1, time_scale=5.0)
    server = triton_server(
        models,
        environment={
            "GE_PYTHON": str(python.path),
            "GE_CACHE_DIR": str(folder / "cache"),
            "ASCEND_HOME_PATH": str(fake_cann(folder / "cann")),
            "FAKE_ATC_RUNS": str(folder / "runs"),
        },
        arguments=("--exit-on-error=false", "--strict-readiness=false"),
    )
    yield Bench(server, python, folder / "runs")
    assert python.report()["misuses"] == []


def requests(seed, count, longest=64, rows=4):
    generator = np.random.default_rng(seed)
    return [
        generator.integers(
            0, VOCABULARY, (generator.integers(1, rows + 1), generator.integers(1, longest + 1))
        )
        for _ in range(count)
    ]


def pooled(ids):
    return ENCODER.expected(input_ids=ids, attention_mask=np.ones_like(ids))["y"]


def test_unequal_requests_share_gears(bench):
    """Sent at once, padded and cut together, each gets what it would get alone, to the last bit."""
    sent = requests(1, 40)
    answers = bench.together("encoder", [{"input_ids": ids} for ids in sent])
    for ids, answer in zip(sent, answers, strict=True):
        assert np.array_equal(answer.as_numpy("y"), pooled(ids))
    assert bench.tells("ge_requests_total", "encoder", len(sent))
    runs = partial(metric, bench.server, "ge_sub_batches_total", model="encoder")
    assert comes_true(lambda: 0 < runs() < len(sent))


def test_an_ensemble_of_unequal_requests(bench):
    """Two offline models on one NPU, one after the other, for clients that know of neither."""
    sent = requests(2, 40)
    answers = bench.together("ensemble", [{"ids": ids} for ids in sent])
    for ids, answer in zip(sent, answers, strict=True):
        expected = HEAD.expected(x=pooled(ids))["y"]
        assert np.allclose(answer.as_numpy("scores"), expected, rtol=1e-5)


def test_a_fused_ensemble_is_uploaded_and_downloaded_once(bench):
    """What the encoder has pooled stays for the head: ids and a mask go up, scores come down."""
    sent = requests(3, 40)
    both = [
        bench.together(model, [{"ids": ids} for ids in sent]) for model in ("ensemble", "fused")
    ]
    for host, fused in zip(*both, strict=True):
        assert np.allclose(host.as_numpy("scores"), fused.as_numpy("scores"), rtol=1e-5)

    def moved(model):
        before = bench.python.report()
        bench.ask(model, "scores", ids=np.array([[1, 2, 3]]))
        after = bench.python.report()
        return tuple(after[way] - before[way] for way in ("uploads", "downloads"))

    assert moved("fused") == (2, 1)
    assert moved("ensemble") == (3, 2)


@pytest.mark.parametrize("model", ["grid", "compiled", "padded", "free"])
def test_rows_of_any_length(bench, model):
    """A grid of files, ONNX that `atc` compiled, one fixed shape that is padded to, and ranges."""
    generator = np.random.default_rng(3)
    sent = [generator.integers(-9, 9, (1, n)).astype(np.float32) for n in (1, 5, 8, 20, 32)]
    answers = bench.together(model, [{"x": x} for x in sent])
    for x, answer in zip(sent, answers, strict=True):
        assert np.array_equal(answer.as_numpy("y").reshape(-1), x.sum(axis=1))


def test_images_of_several_sizes(bench):
    """Padded to the gear, and cut again."""
    for shape in ((1, 3, 8, 8), (1, 3, 9, 20), (1, 3, 5, 31)):
        x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
        assert np.array_equal(bench.ask("image", x=x), x)


def test_what_is_left_out_is_read_from_the_file(bench):
    """Inputs, outputs and the largest batch; an attention mask need not be sent."""
    config = bench.config("encoder")
    assert config["max_batch_size"] == 8
    assert [(i["name"], i["dims"]) for i in config["input"]] == [
        ("input_ids", ["-1"]),
        ("attention_mask", ["-1"]),
    ]
    assert config["input"][1]["optional"]
    assert [(o["name"], o["dims"]) for o in config["output"]] == [("y", [str(WIDTH)])]
    assert bench.config("grid")["max_batch_size"] == 4


def test_onnx_is_compiled_once_for_all_buckets(bench):
    """One run of the compiler, whatever restarts there were."""
    assert len(runs_of_atc(bench.atc_runs)) == 1


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("broken_chip", "built for Ascend310P3.*--soc_version=Ascend910B3"),
        ("broken_file", "model.om cannot be loaded"),
        ("broken_index", "there is no npu:9: this process sees 1 NPU"),
        ("broken_buckets", "the model file runs only with 1, 4, 8"),
    ],
)
def test_what_cannot_be_served_says_why(bench, model, words):
    """In the reason that Triton shows for the model."""
    assert not bench.client.is_model_ready(model)
    assert re.search(words, bench.reason(model)), bench.reason(model)


def test_a_broken_device_costs_no_request(bench):
    """Its executor ends, another one loads the models again, and every request is answered."""
    before = metric(bench.server, "ge_executor_restarts_total", model="encoder")
    bench.python.fail("kernel.encoder", 507015)
    sent = requests(5, 12)
    answers = bench.together("encoder", [{"input_ids": ids} for ids in sent])
    assert [np.array_equal(a.as_numpy("y"), pooled(i)) for a, i in zip(answers, sent, strict=True)]
    assert bench.tells("ge_executor_restarts_total", "encoder", before + 1)


def test_what_breaks_the_device_is_found_out(bench):
    """An id beyond the table stops the AI core, again and again: the other models are answered."""
    bad = np.full((1, 9), 10**6)
    with ThreadPoolExecutor() as pool:
        others = pool.submit(bench.together, "grid", [{"x": np.ones((1, 7), np.float32)}] * 20)
        (answer,) = bench.together("encoder", [{"input_ids": bad}])
        assert "executor died" in str(answer)
        for other in others.result():
            assert other.as_numpy("y").reshape(-1).tolist() == [7.0]
    (ids,) = requests(6, 1)
    assert np.array_equal(bench.ask("encoder", input_ids=ids), pooled(ids))
