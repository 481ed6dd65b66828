"""A fused ensemble on a simulated NPU: what crosses the bus, and what happens when it is lost."""

import json
import os

import numpy as np
import pytest

from acl_simulator import DimsGears, MatMul, Sums, write_om
from acl_simulator.graphs import TokenRows
from acl_simulator.site import SimulatedPython
from builders.graphs import parameters, write_model
from ge_backend.errors import OutOfMemory
from ge_backend.metrics import Recorder
from ge_backend.model.config.model_folder import read_folder
from ge_backend.serving.batching.pipeline import Pipeline
from ge_backend.serving.batching.request import check_request
from ge_backend.serving.fused import fused_document, open_fused
from ge_backend.serving.warmup.store import Store
from ge_backend.shapes.buckets.costs import StaticCosts, element_costs

WIDTH = 16  # 64 bytes of FP32: what may be copied on the device
TOKENS, MIX = TokenRows(width=WIDTH), MatMul(rows=WIDTH, columns=WIDTH)
BATCHED = "max_batch_size: 4\n"
ROWS = f"data_type: TYPE_FP32 dims: [ -1, {WIDTH} ]"
STEPS = {
    "tokens": (
        'input [ { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] } ]',
        f'output [ {{ name: "y" {ROWS} }} ]',
        TOKENS,
        DimsGears({"input_ids": (-1, -1)}, [(1, 4), (4, 4), (4, 8), (2, 16)]),
    ),
    "mix": (
        f'input [ {{ name: "x" {ROWS} }} ]',
        f'output [ {{ name: "y" {ROWS} }} ]',
        MIX,
        DimsGears({"x": (-1, -1, WIDTH)}, [(1, 8), (3, 8), (4, 16)]),
    ),
    "sums": (
        f'input [ {{ name: "x" {ROWS} }} ]',
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]',
        Sums(),
        DimsGears({"x": (-1, -1, WIDTH)}, [(2, 6), (4, 16)]),
    ),
}
AXES = {
    "tokens": {"input_ids": ["batch", "n"], "y": ["batch", "n", ""]},
    "mix": {"x": ["batch", "n", ""], "y": ["batch", "n", ""]},
    "sums": {"x": ["batch", "n", ""], "y": ["batch", "n"]},
}
ENSEMBLE = f"""
platform: "ensemble" {BATCHED}
input [ {{ name: "IDS" data_type: TYPE_INT64 dims: [ -1 ] }} ]
output [ {{ name: "SUMS" data_type: TYPE_FP32 dims: [ -1 ] }} %s ]
ensemble_scheduling {{ step [
  {{ model_name: "tokens" model_version: -1
    input_map {{ key: "input_ids" value: "IDS" }} output_map {{ key: "y" value: "ROWS" }} }},
  {{ model_name: "mix" model_version: -1
    input_map {{ key: "x" value: "ROWS" }} output_map {{ key: "y" value: "MIXED" }} }},
  {{ model_name: "sums" model_version: -1
    input_map {{ key: "x" value: "ROWS" }} output_map {{ key: "y" value: "UNUSED" }} }},
  {{ model_name: "sums" model_version: -1
    input_map {{ key: "x" value: "MIXED" }} output_map {{ key: "y" value: "SUMS" }} }}
] }}
"""


@pytest.fixture
def python(tmp_path):
    """An interpreter with a simulated `acl`; at the end nothing was misused or left on the device."""
    python = SimulatedPython(tmp_path)
    yield python
    report = python.report()
    assert report["misuses"] == []
    assert report["finalised"]


@pytest.fixture
def models(tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    for name, (taken, given, graph, shapes) in STEPS.items():
        text = f"{BATCHED} {taken} {given}\n"
        write_model(models, name, text + parameters(device="npu:0"))
        write_om(models / name / "1" / "model.om", graph, shapes, name=name)
        (models / name / "1" / "model.om.json").write_text(json.dumps({"axes": AXES[name]}))
    for name, shown in (("piped", ""), ("shown", f', {{ name: "MIXED" {ROWS} }}')):
        (models / name / "1").mkdir(parents=True)
        (models / name / "config.pbtxt").write_text(ENSEMBLE % shown)
        write_model(models, f"fused_{name}", parameters(fuse=name))
    return models


@pytest.fixture
def opened(python, machine, models, monkeypatch):
    """A function that opens a fused model; it is closed at the end."""
    monkeypatch.setenv("GE_RUNTIME_DIR", str(machine.folder))
    monkeypatch.setenv("GE_PYTHON", str(python.path))
    monkeypatch.setenv("GE_EXECUTOR_LINGER_S", "0.2")
    fused = []

    def opened(name="fused_piped"):
        folder = read_folder(models / name)
        given = folder.config(os.environ)
        config = folder.config(os.environ, fused_document(dict(folder.document), given))
        pipeline, learners = open_fused(
            config,
            Recorder(),
            Store(None),
            on_restart=lambda _: None,
        )
        fused.append((pipeline, learners))
        for step in pipeline.steps:  # not measured, so that batches are always cut alike
            step.pipeline.costs = StaticCosts(element_costs(list(step.pipeline.costs.table)))
        return pipeline

    yield opened
    for pipeline, learners in fused:
        for learner in learners:
            learner.close()
        pipeline.close()


def ask(fused, *batches):
    """Run one batch; return the outputs or the error of each request."""
    requests = [
        check_request(at, {"IDS": np.array(ids)}, fused.layout) for at, ids in enumerate(batches)
    ]
    replies = {}
    for reply in fused.run(requests):
        assert reply.request not in replies
        copies = {name: array.copy() for name, array in reply.outputs.items()}
        replies[reply.request] = reply.error or copies
    return [replies[at] for at in range(len(requests))]


def through_host(fused, *batches):
    """Run the same step by step, every tensor through host memory: what it was without keeping."""
    known = [{"IDS": np.array(ids)} for ids in batches]
    ways = [("IDS", "ROWS"), ("ROWS", "MIXED"), ("ROWS", "UNUSED"), ("MIXED", "SUMS")]
    for step, (taken, given) in zip(fused.steps, ways, strict=True):
        pipeline = step.pipeline
        (item,) = pipeline.layout.inputs
        requests = [
            check_request(at, {item.name: tensors[taken]}, pipeline.layout)
            for at, tensors in enumerate(known)
        ]
        for reply in pipeline.run(requests):
            known[reply.request][given] = reply.outputs["y"].copy()
    return known


def expected(ids):
    mixed = MIX.expected(x=TOKENS.expected(input_ids=np.array(ids))["y"])["y"]
    return Sums().expected(x=mixed)["y"]


def crossed(python, action):
    """Return what an action returns, and how often it went over the bus: (up, down)."""
    before = python.report()
    result = action()
    after = python.report()
    return result, tuple(after[way] - before[way] for way in ("uploads", "downloads"))


def kept(fused):
    """Return how many tensors stay on the device."""
    report = fused.steps[0].pipeline.fleet.sessions[0].inspect()
    assert report.defects == ()
    return report.kept_tensors


def before_step(fused, index, action, monkeypatch):
    """Have something done once, before a step of the next batch begins."""
    step, run, done = fused.steps[index].pipeline, Pipeline.run, []

    def watched(self, requests, retention=None):
        if self is step and not done:
            done.append(action())
        return run(self, requests, retention)

    monkeypatch.setattr(type(step), "run", watched)


def random_batch(seed, count):
    generator = np.random.default_rng(seed)
    return [
        generator.integers(0, 100, (generator.integers(1, 4), generator.integers(1, 17)))
        for _ in range(count)
    ]


def test_one_upload_and_one_download(opened, python):
    """Four steps, in gears of their own: only the ids and the sums cross the bus.

    One step's output is for nobody, and is not downloaded either.
    """
    fused = opened()
    ids = [[5, 6, 7], [8, 9, 10]]
    (answer,), moved = crossed(python, lambda: ask(fused, ids))
    assert moved == (1, 1)
    np.testing.assert_allclose(answer["SUMS"], expected(ids), rtol=1e-4, atol=1e-5)
    _, moved = crossed(python, lambda: through_host(fused, ids))
    assert moved == (4, 4)
    assert kept(fused) == 0


def test_a_tensor_that_clients_see_is_downloaded_once(opened, python):
    """It stays for the next step all the same."""
    fused = opened("fused_shown")
    ids = [[5, 6, 7], [8, 9, 10]]
    (answer,), moved = crossed(python, lambda: ask(fused, ids))
    assert moved == (1, 2)
    (truth,) = through_host(fused, ids)
    assert all(np.array_equal(answer[name], truth[name]) for name in ("MIXED", "SUMS"))


def test_unequal_requests_are_what_they_are_through_the_host(opened, python):
    """Rows are padded, cut and grouped anew in every step; equal to the bit, and nothing is left.

    After the first batches nothing is allocated any more.
    """
    fused = opened()
    for seed in range(12):
        batch = random_batch(seed, 9)
        answers = ask(fused, *batch)
        for answer, truth, ids in zip(answers, through_host(fused, *batch), batch, strict=True):
            assert answer["SUMS"].tobytes() == truth["SUMS"].tobytes()
            np.testing.assert_allclose(answer["SUMS"], expected(ids), rtol=1e-3, atol=1e-4)
        assert kept(fused) == 0
    allocated = python.report()["calls"]["rt.malloc"]
    for seed in range(12):
        ask(fused, *random_batch(seed, 9))
    assert python.report()["calls"]["rt.malloc"] == allocated


def test_a_run_that_fails_is_repeated_from_what_stays(opened, python, monkeypatch):
    """The second step's run is refused once: each of its requests is run again alone."""
    fused = opened()
    batch = [[[1, 2, 3]], [[4, 5]], [[6]]]
    before_step(fused, 1, lambda: python.fail("mdl.execute_async", 100000), monkeypatch)
    before = python.report()["runs"]
    answers, moved = crossed(python, lambda: ask(fused, *batch))
    runs = {name: count - before[name] for name, count in python.report()["runs"].items()}
    assert runs["mix"] == 3
    assert moved == (runs["tokens"], runs["sums"] // 2)  # two steps run it, one of them for nobody
    for answer, ids in zip(answers, batch, strict=True):
        np.testing.assert_allclose(answer["SUMS"], expected(ids), rtol=1e-3, atol=1e-4)
    assert kept(fused) == 0


def test_a_batch_whose_tensors_are_lost_begins_again(opened, python, machine, monkeypatch):
    """The executor is killed between two steps: the requests go through all of them once more."""
    fused = opened()
    batch = random_batch(4, 5)
    before_step(fused, 1, machine.kill, monkeypatch)
    for answer, ids in zip(ask(fused, *batch), batch, strict=True):
        np.testing.assert_allclose(answer["SUMS"], expected(ids), rtol=1e-3, atol=1e-4)
    (answer,), moved = crossed(python, lambda: ask(fused, [[1, 2, 3]]))
    assert moved == (1, 1)
    assert kept(fused) == 0


def test_a_tensor_without_room_on_the_device_goes_through_the_host(opened, python, monkeypatch):
    """The model is served all the same; what has room stays."""
    keep = Pipeline.retain_tensors

    def short(self, owner, buffer_bytes=()):
        if buffer_bytes and self.layout.inputs[0].name == "input_ids":
            raise OutOfMemory("no room")
        return keep(self, owner, buffer_bytes)

    monkeypatch.setattr(Pipeline, "retain_tensors", short)
    fused = opened()
    (answer,), moved = crossed(python, lambda: ask(fused, [[1, 2, 3]]))
    assert moved == (3, 2)  # up: ids and, for two steps, their rows; down: these rows and the sums
    np.testing.assert_allclose(answer["SUMS"], expected([[1, 2, 3]]), rtol=1e-4, atol=1e-5)
    assert kept(fused) == 0


def test_memory_goes_with_the_last_step(opened, python):
    """The store of one instance is not another's, and ends with it."""
    one, other = opened(), opened()
    session = other.steps[0].pipeline.fleet.sessions[0]
    ask(one, [[1, 2, 3]])
    both = session.inspect().kept_bytes
    one.close()
    ask(other, [[1, 2, 3]])
    assert 0 < session.inspect().kept_bytes == both // 2
