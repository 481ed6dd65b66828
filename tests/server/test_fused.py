"""Ensembles on the real server: the host's own, and the same ones fused into one model."""

import contextlib
import os
import queue
import signal
import time
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from benchmarks.trust.faults import executors
from tritonclient.utils import InferenceServerException

from builders.graphs import (
    RAGGED,
    TABLE,
    VOCABULARY,
    WIDTH,
    masked_mean,
    parameters,
    row_sums,
    sum_and_difference,
    token_rows,
    write_model,
)
from builders.metrics import metric
from builders.null_models import comes_true
from builders.servers import server_options
from builders.standstill import standing_still
from ge_tools.tritonserver import TritonServer

NOTHING = contextlib.nullcontext()
BATCHED = "max_batch_size: 8\n"
DYNAMIC = "dynamic_batching { max_queue_delay_microseconds: 2000 }\n"
IDS = f'{{ name: "ids" data_type: TYPE_INT64 {RAGGED} }}'
VECTOR = f"data_type: TYPE_FP32 dims: [ {WIDTH} ]"
ROWS = f"data_type: TYPE_FP32 dims: [ -1, {WIDTH} ]"
EMBED = f'input [ {IDS} ] output [ {{ name: "y" {ROWS} }} ]\n'
MEAN = f'input [ {IDS} ] output [ {{ name: "y" {VECTOR} }} ]\n'
SUMS = f'input [ {{ name: "x" {ROWS} allow_ragged_batch: true }} ] output [ {{ name: "y" {VECTOR} }} ]\n'
BUCKETS = parameters(buckets__rows="1,2,4,8", buckets__sequence="8,16,32")


def ensemble(*steps, outputs=("sum", "diff")):
    """Return the configuration of an ensemble; a step is (model, inputs, outputs[, version])."""

    def maps(kind, pairs):
        return " ".join(f'{kind} {{ key: "{key}" value: "{value}" }}' for key, value in pairs)

    lines = [
        f'{{ model_name: "{model}" model_version: {version[0] if version else -1} '
        f"{maps('input_map', inputs.items())} {maps('output_map', given.items())} }}"
        for model, inputs, given, *version in steps
    ]
    declared = ", ".join(f'{{ name: "{name}" {VECTOR} }}' for name in outputs)
    ids = '{ name: "IDS" data_type: TYPE_INT64 dims: [ -1 ] }'
    return (
        f'platform: "ensemble" {BATCHED} input [ {ids} ] output [ {declared} ] '
        f"ensemble_scheduling {{ step [ {', '.join(lines)} ] }}"
    )


TOKENS = ("tokens", {"ids": "IDS"}, {"y": "rows"})
TOTAL = ("total", {"x": "rows"}, {"y": "total"})
AVERAGE = ("average", {"ids": "IDS"}, {"y": "average"})
JOINED = ("joined", {"a": "total", "b": "average"}, {"sum": "sum", "diff": "diff"})
STRICT = ("strict", {"ids": "IDS"}, {"y": "diff"})
MASKED = ("average", {"ids": "IDS", "attention_mask": "MASK"}, {"y": "sum"})
LABELLED = "first\nsecond\nthird\nfourth"
BROKEN = {
    "cycle": (
        ensemble(("joined", {"a": "average", "b": "sum"}, {"sum": "sum", "diff": "diff"}), AVERAGE),
        "the steps 'joined' wait for each other's outputs",
    ),
    "missing": (ensemble(TOKENS, AVERAGE, JOINED), "takes tensor 'total', which nobody writes"),
    "no_step": (
        ensemble(TOKENS, TOTAL, AVERAGE, ("gone", JOINED[1], JOINED[2])),
        "step 'gone' is not in",
    ),
    "no_version": (
        ensemble(TOKENS, TOTAL, AVERAGE, (*JOINED, 7)),
        "step 'joined' has no version 7",
    ),
    "no_output": (
        ensemble(TOKENS, TOTAL, ("average", {"ids": "IDS"}, {"z": "average"}), JOINED),
        "step 'average' has no output 'z'; it has y",
    ),
    "dtypes": (
        ensemble(TOKENS, TOTAL, ("average", {"ids": "total"}, {"y": "average"}), JOINED),
        "'y' of step 'total' (FP32 [batch, 4]) does not fit 'ids' of step 'average' (INT64 [batch",
    ),
    "incomplete": (
        ensemble(TOKENS, TOTAL, ("joined", {"a": "total"}, JOINED[2])),
        "step 'joined' needs its input 'b'",
    ),
    "foreign": (
        ensemble(TOKENS, TOTAL, ("foreign", {"ids": "IDS"}, {"y": "average"}), JOINED),
        "step 'foreign'",
    ),
    "nested": (
        ensemble(TOKENS, TOTAL, ("forked", {"IDS": "IDS"}, {"sum": "average"}), JOINED),
        "ensemble 'nested_piped', step 'forked': it is an ensemble itself",
    ),
    "texts": (
        ensemble(TOKENS, TOTAL, ("writer", {"ids": "IDS"}, {"y": "average"}), JOINED),
        "ensemble 'texts_piped': step 'writer' writes text",
    ),
    "garbage": (
        ensemble(TOKENS, TOTAL, ("garbage", {"ids": "IDS"}, {"y": "average"}), JOINED),
        "ensemble 'garbage_piped', step 'garbage': ",
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    write_model(models, "tokens", BATCHED + EMBED + DYNAMIC + BUCKETS, token_rows())
    write_model(models, "total", BATCHED + SUMS + DYNAMIC + BUCKETS, row_sums())
    write_model(models, "average", model=masked_mean())  # completed from its file
    write_model(models, "joined", model=sum_and_difference())
    (models / "foreign" / "1").mkdir(parents=True)
    foreign = f'backend: "python" {BATCHED} {MEAN}'
    (models / "foreign" / "config.pbtxt").write_text(foreign)
    (models / "foreign" / "1" / "model.py").write_text(
        "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    )
    write_model(models, "garbage", BATCHED + MEAN, b"garbage")
    write_model(models, "writer", model=b'{"model_type": "llama"}', filename="config.json")
    write_ensemble(models, "piped", ensemble(JOINED, AVERAGE, TOKENS, TOTAL))
    write_model(models, "fused", parameters(fuse="piped", executor="process"))
    masked = ensemble(MASKED, outputs=("sum",)).replace(
        "] output", ', { name: "MASK" data_type: TYPE_INT64 dims: [ -1 ] optional: true } ] output'
    )
    write_ensemble(models, "masked", masked)
    write_model(models, "masked_fused", parameters(fuse="masked"))
    named = f'input [ {{ name: "x" {ROWS} allow_ragged_batch: true }} ] '
    named += f'output [ {{ name: "y" {VECTOR} label_filename: "names.txt" }} ]\n'
    write_model(models, "named", BATCHED + named + DYNAMIC + BUCKETS, row_sums())
    (models / "named" / "names.txt").write_text(LABELLED)
    write_ensemble(
        models,
        "labelled",
        ensemble(TOKENS, ("named", {"x": "rows"}, {"y": "sum"}), outputs=["sum"]),
    )
    write_model(models, "labelled_fused", parameters(fuse="labelled"))
    less = f'{BATCHED} output [ {{ name: "sum" {VECTOR} }} ]'
    write_model(models, "labelled_less", less + parameters(fuse="labelled"))
    for name in ("labelled_fused", "labelled_less"):
        (models / name / "named.names.txt").write_text(LABELLED)
    short = parameters(overflow="error", buckets__sequence="4")
    write_model(models, "strict", BATCHED + MEAN + short, masked_mean())
    write_ensemble(models, "forked", ensemble(("average", {"ids": "IDS"}, {"y": "sum"}), STRICT))
    write_model(models, "forked_fused", parameters(fuse="forked"))
    write_model(models, "forked_less", less + parameters(fuse="forked"))
    write_model(models, "fused_inline", parameters(fuse="piped", executor="inline"))
    live = "sequence_batching { oldest { max_candidate_sequences: 4 } } "
    write_model(models, "fused_live", live + parameters(fuse="piped"))
    one = f'{BATCHED} input [ {{ name: "IDS" data_type: TYPE_INT64 {RAGGED} }} ] '
    one += f'output [ {{ name: "diff" {VECTOR} }} ] instance_group [ {{ count: 2 }} ] {DYNAMIC}'
    write_model(models, "fused_one", one + parameters(fuse="piped"))
    for name, (text, _) in BROKEN.items():
        write_ensemble(models, f"{name}_piped", text)
        write_model(models, f"{name}_fused", one + parameters(fuse=f"{name}_piped"))
    write_model(models, "nobody_fused", one + parameters(fuse="nobody"))
    return models


def write_ensemble(models, name, text):
    (models / name / "1").mkdir(parents=True)
    (models / name / "config.pbtxt").write_text(text)


@pytest.fixture(scope="module")
def server(models, installation, tmp_path_factory):
    options = server_options(
        models,
        log_file=tmp_path_factory.mktemp("log") / "server.log",
        arguments=("--exit-on-error=false", "--strict-readiness=false"),
    )
    with TritonServer(installation, options) as running:
        yield running


def reason(client, model):
    index = client.get_model_repository_index(as_json=True)["models"]
    return next(item.get("reason", "") for item in index if item["name"] == model)


def together(client, model, requests, outputs=None, sending=NOTHING):
    """Send requests at once; return {output: array} for each, or its error.

    `sending` is entered while they are sent.
    """
    assert client.is_model_ready(model), reason(client, model)
    done = queue.Queue()
    with sending:
        for index, ids in enumerate(requests):
            item = grpcclient.InferInput("IDS", list(ids.shape), "INT64")
            item.set_data_from_numpy(ids)
            client.async_infer(
                model,
                [item],
                lambda result, error, index=index: done.put((index, error or result)),
                outputs=outputs,
            )
    return [found for _, found in sorted((done.get(timeout=60) for _ in requests), key=first)]


def first(pair):
    return pair[0]


def random_ids(seed, count):
    generator = np.random.default_rng(seed)
    return [
        generator.integers(
            0, VOCABULARY, (int(generator.integers(1, 4)), int(generator.integers(1, 40)))
        )
        for _ in range(count)
    ]


def expected(ids):
    total, average = TABLE[ids].sum(axis=1), TABLE[ids].mean(axis=1)
    return {"sum": total + average, "diff": total - average}


@pytest.mark.parametrize("model", ["piped", "fused", "fused_inline"])
def test_ragged_requests_go_through_every_step(client, model):
    """Fan-out and fan-in, unequal lengths at once: what numpy computes for each request alone."""
    requests = random_ids(1, 40)
    for ids, answer in zip(requests, together(client, model, requests), strict=True):
        for name, truth in expected(ids).items():
            np.testing.assert_allclose(answer.as_numpy(name), truth, rtol=1e-4, atol=1e-5)


def test_fused_and_host_agree(client):
    """Both ways have the same steps; only sums in another order may differ in the last bits."""
    requests = random_ids(2, 20)
    both = (together(client, model, requests) for model in ("piped", "fused"))
    for host, fused in zip(*both, strict=True):
        for name in ("sum", "diff"):
            np.testing.assert_allclose(
                host.as_numpy(name), fused.as_numpy(name), rtol=1e-5, atol=1e-6
            )


def test_a_fused_model_may_declare_less(client):
    """One output of the ensemble, in two instances, with settings of its own."""
    requests = random_ids(3, 20)
    for ids, answer in zip(requests, together(client, "fused_one", requests), strict=True):
        np.testing.assert_allclose(
            answer.as_numpy("diff"), expected(ids)["diff"], rtol=1e-4, atol=1e-5
        )
        assert answer.as_numpy("sum") is None


def test_a_fused_model_completes_itself_from_the_ensemble(client):
    """Inputs, outputs and batch size are the ensemble's."""
    config = client.get_model_config("fused", as_json=True)["config"]
    assert [tensor["name"] for tensor in config["input"]] == ["IDS"]
    assert [tensor["name"] for tensor in config["output"]] == ["sum", "diff"]
    assert config["max_batch_size"] == 8


def test_a_fused_model_with_sequences_completes_itself(client):
    """The host keeps each one's steps in order; nothing is carried from one to the next."""
    assert client.get_model_config("fused_live").config.max_batch_size == 8
    for length in (1, 2, 3):
        ids = np.ones((1, length), np.int64)
        item = grpcclient.InferInput("IDS", [1, length], "INT64")
        item.set_data_from_numpy(ids)
        flags = {"sequence_start": length == 1, "sequence_end": length == 3}
        answer = client.infer("fused_live", [item], sequence_id=7, **flags)
        np.testing.assert_allclose(answer.as_numpy("sum"), expected(ids)["sum"], rtol=1e-4)


def test_unequal_requests_share_the_batches_of_a_model_that_completes_itself(client, server):
    """The host collects them, as it does for the first step of its own ensemble."""
    requests = [np.ones((1, length), np.int64) for length in range(1, 33)]
    before = executions(client, "fused")
    answers = together(client, "fused", requests, sending=standing_still(server))
    for ids, answer in zip(requests, answers, strict=True):
        np.testing.assert_allclose(answer.as_numpy("sum"), expected(ids)["sum"], rtol=1e-4)
    assert comes_true(lambda: executions(client, "fused")[0] - before[0] == 32)  # after answers
    assert executions(client, "fused")[1] - before[1] < 32


def executions(client, model):
    (found,) = client.get_inference_statistics(model).model_stats
    return found.inference_count, found.execution_count


@pytest.mark.parametrize("model", ["masked", "masked_fused"])
def test_an_optional_input_may_be_left_out(client, model):
    """The step makes it then; one that is sent reaches it."""
    ids, mask = np.array([[1, 2, 3]]), np.array([[1, 1, 0]])
    for sent, truth in (({"IDS": ids}, [1, 2, 3]), ({"IDS": ids, "MASK": mask}, [1, 2])):
        inputs = []
        for name, array in sent.items():
            inputs.append(grpcclient.InferInput(name, list(array.shape), "INT64"))
            inputs[-1].set_data_from_numpy(array)
        found = client.infer(model, inputs).as_numpy("sum")
        np.testing.assert_allclose(found, [TABLE[truth].mean(axis=0)], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["forked", "forked_fused"])
def test_a_step_that_a_request_does_not_need_does_not_refuse_it(client, model):
    """It asks for the other step's output; who asks for both is refused."""
    ids = np.array([[1, 2, 3, 4, 5, 6]])
    (found,) = together(client, model, [ids], [grpcclient.InferRequestedOutput("sum")])
    np.testing.assert_allclose(found.as_numpy("sum"), TABLE[ids].mean(axis=1), rtol=1e-4, atol=1e-5)
    assert found.as_numpy("diff") is None
    (refused,) = together(client, model, [ids])
    assert "the largest bucket is 4" in refused.message()


def test_a_step_to_an_output_that_is_left_out_refuses_nobody(client):
    """The fused model declares the other step's output alone, and nobody can ask for more."""
    ids = np.array([[1, 2, 3, 4, 5, 6]])
    (found,) = together(client, "forked_less", [ids])
    np.testing.assert_allclose(found.as_numpy("sum"), TABLE[ids].mean(axis=1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["labelled", "labelled_fused", "labelled_less"])
def test_labels_of_a_step_are_the_ensembles(client, model):
    """A client that asks for classes gets their names."""
    ids = np.array([[1, 2, 3]])
    classes = [grpcclient.InferRequestedOutput("sum", class_count=1)]
    (answer,) = together(client, model, [ids], outputs=classes)
    best = int(TABLE[ids].sum(axis=1).argmax())
    (text,) = answer.as_numpy("sum").flatten()
    assert text.decode().split(":")[1:] == [str(best), LABELLED.split()[best]]


def test_a_failing_step_names_itself_and_fails_alone(client):
    """A token beyond the table is the first step's error; its neighbours are answered."""
    good = random_ids(4, 6)
    bad = np.array([[VOCABULARY + 5]])
    *answers, failed = together(client, "fused", [*good, bad])
    assert isinstance(failed, InferenceServerException)
    assert "step '" in failed.message()
    for ids, answer in zip(good, answers, strict=True):
        np.testing.assert_allclose(
            answer.as_numpy("sum"), expected(ids)["sum"], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_fused_is_refused_at_load(client, name):
    """Both ends of what is wrong are named."""
    assert BROKEN[name][1] in reason(client, f"{name}_fused")


def test_an_ensemble_that_is_not_there_is_refused(client):
    """By its name."""
    assert "'fuse' names 'nobody'" in reason(client, "nobody_fused")


def test_the_time_of_each_step_is_counted(client, server):
    """As a metric of the fused model."""
    together(client, "fused", random_ids(5, 4))
    end = time.monotonic() + 30
    steps = set()
    while len(steps) < 4 and time.monotonic() < end:
        text = urllib.request.urlopen(server.metrics).read().decode()
        steps = {
            line.split('step="')[1].split('"')[0]
            for line in text.splitlines()
            if line.startswith("ge_step_seconds_total{") and 'model="fused"' in line
        }
    assert steps == {"tokens", "total", "average", "joined"}


def test_the_steps_of_an_inline_model_are_in_its_own_process(client, server):
    """An executor that dies is not theirs."""
    for pid in executors(server):
        os.kill(pid, signal.SIGKILL)
    for model in ("fused", "fused_inline"):
        requests = random_ids(6, 4)
        for ids, answer in zip(requests, together(client, model, requests), strict=True):
            np.testing.assert_allclose(answer.as_numpy("sum"), expected(ids)["sum"], rtol=1e-4)
    assert comes_true(lambda: restarted(server, "fused") > 0)
    assert restarted(server, "fused_inline") == 0


def restarted(server, model):
    return metric(server, "ge_executor_restarts_total", model=model)
