"""A batch's replies reach their own requests, early or together, and errors stay where they belong."""

import json
import math
import sys
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from builders.host_config import instance_of
from builders.null_models import comes_true
from ge_backend.errors import ConfigError, InvalidRequest, Status
from ge_backend.metrics import Recorder
from ge_backend.model.config.model import QueuePolicy
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.tensors import DATA_TYPES

TENSOR = {"dtype": DATA_TYPES["INT64"], "dims": (-1,), "axes": (0,), "names": ("length",)}
LAYOUT = Layout(
    batched=True,
    axes=("length",),
    limits={},
    inputs=(InputLayout(name="x", fill=0.0, made="", **TENSOR),),
    outputs=(OutputLayout(name="y", **TENSOR),),
)


def test_a_graph_that_is_declared_decoupled_is_refused_at_load(pb_utils):
    """The host would refuse every answer."""
    from ge_backend.host.backend import Backend

    policy = {"name": "m", "model_transaction_policy": {"decoupled": True}}
    with pytest.raises(ConfigError, match="model_transaction_policy says decoupled"):
        Backend.open(instance_of(policy))


GRAPH = {
    "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
    "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch", "length"], "of": "x"}],
}
TENSOR_PBTXT = "data_type: TYPE_FP32 dims: [ -1 ]"
PBTXT = f"""max_batch_size: 4
input [ {{ name: "x" {TENSOR_PBTXT} }} ]
output [ {{ name: "y" {TENSOR_PBTXT} }} ]
"""
ENSEMBLE = f"""{PBTXT} platform: "ensemble"
ensemble_scheduling {{ step [ {{ model_name: "m" model_version: -1
  input_map {{ key: "x" value: "x" }} output_map {{ key: "y" value: "y" }} }} ] }}
"""


def opened_once(pb_utils, monkeypatch, folder, document):
    """Open a model and close it; return the published values by metric and labels."""
    from ge_backend.host.backend import Backend

    monkeypatch.setenv("GE_CACHE_DIR", "off")
    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: str(folder))
    Backend.open(instance_of({"name": folder.parent.name, **document})).close()
    return {
        (
            family,
            *(series.labels.get(label) for label in ("model", "device", "status")),
        ): series.value
        for family, metric in pb_utils.MetricFamily.families.items()
        for series in metric.series
    }


def document(**parameters):
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    return {
        "max_batch_size": 4,
        "input": [{"name": "x", **tensor}],
        "output": [{"name": "y", **tensor}],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }


@pytest.fixture
def models(tmp_path):
    """A repository of a model, an ensemble of it, and the folder of one that fuses that."""
    for name, config in (("m", f'{PBTXT} backend: "ge"'), ("both", ENSEMBLE), ("fused", "")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(config)
    (tmp_path / "m" / "1" / "model.null").write_text(json.dumps(GRAPH))
    return tmp_path


def test_counters_that_alerts_watch_begin_with_zero(pb_utils, monkeypatch, models):
    """Prometheus sees no growth in a series that begins with 1."""
    told = document(device="null", executor="inline", warmup="off")
    published = opened_once(pb_utils, monkeypatch, models / "m" / "1", told)
    assert published["ge_requests_total", "m", "null", None] == 0  # the dashboard's list of models
    assert published["ge_executor_restarts_total", "m", "null", None] == 0
    assert published["ge_unplanned_shapes_total", "m", "null", None] == 0
    for status in Status:
        assert published["ge_request_failures_total", "m", "null", status.value] == 0


def test_so_do_those_of_an_ensembles_steps(pb_utils, monkeypatch, models):
    """Each step's shapes are its own, and so are its devices."""
    (models / "m" / "config.pbtxt").write_text(
        f'{PBTXT} backend: "ge" parameters {{ key: "device" value {{ string_value: "null" }} }}'
    )
    told = document(fuse="both", executor="inline", device="cuda:0")
    published = opened_once(pb_utils, monkeypatch, models / "fused" / "1", told)
    assert published["ge_requests_total", "fused", "null", None] == 0
    assert published["ge_executor_restarts_total", "fused", "null", None] == 0
    assert published["ge_unplanned_shapes_total", "fused/m", "null", None] == 0


@dataclass
class FakePipeline:
    """Answers with the given function over the requests."""

    answer: object
    layout: Layout = LAYOUT
    recorder: Recorder = field(default_factory=Recorder)
    free_at_ns: float = 0.0
    stacks: bool = False

    def run(self, requests):
        return self.answer(requests)


def configured(**changes):
    """Return what a backend reads of its configuration."""
    given = {"sequence": None, "queue": None, "max_batch_size": 8}
    return SimpleNamespace(**given | changes)


@pytest.fixture
def execute(pb_utils):
    """Runs a batch of arrays through a backend; returns (responses, requests, recorder)."""
    from ge_backend.host.backend import Backend
    from ge_backend.host.codec import read_request  # noqa: F401 - imported against the fake

    def run(answer, arrays):
        pipeline = FakePipeline(answer)
        config = configured()
        closing = SimpleNamespace(close=lambda: None)
        backend = Backend(config, pipeline, [closing])
        requests = [
            pb_utils.InferenceRequest([pb_utils.Tensor("x", array)], ["y"]) for array in arrays
        ]
        return backend.execute(requests), requests, pipeline.recorder.drain()

    return run


def echo(remaining_ns=0.0, failing=()):
    from ge_backend.serving.batching.progress import Reply

    def answer(requests):
        for position, request in reversed(list(enumerate(requests))):
            error = InvalidRequest("bad") if request.index in failing else None
            outputs = {} if error else {"y": request.tensors["x"]}
            yield Reply(request=position, outputs=outputs, error=error, remaining_ns=remaining_ns)

    return answer


def ints(*rows):
    return [np.array([row]) for row in rows]


def test_replies_go_to_their_requests(execute):
    """Whatever the order of completion, each request gets its own outputs."""
    responses, _, _ = execute(echo(), ints([1], [2, 3], [4]))
    got = [response.output_tensors()[0].as_numpy().tolist() for response in responses]
    assert got == [[[1]], [[2, 3]], [[4]]]


def test_a_malformed_request_fails_alone(execute):
    """A request that does not fit is answered with its error and never reaches the pipeline."""
    arrays = [np.array([[1]]), np.array([[1.5]]), np.array([[2]])]
    responses, _, recorded = execute(echo(), arrays)
    assert [response.has_error() for response in responses] == [False, True, False]
    assert "expected INT64" in responses[1].error().message()
    assert recorded["ge_request_failures_total", (("status", "INVALID_ARG"),)] == 1


def test_a_failed_run_fails_its_request(execute):
    """An error in a reply becomes that request's status."""
    responses, _, _ = execute(echo(failing={1}), ints([1], [2]))
    assert [response.has_error() for response in responses] == [False, True]


def test_early_replies_are_sent_and_the_last_is_returned(execute, pb_utils):
    """With much of the batch left, a reply goes through its sender and its place stays empty."""
    responses, requests, recorded = execute(echo(remaining_ns=1e9), ints([1], [2], [3]))
    assert responses[1:] == [None, None]
    assert responses[0] is not None
    assert [len(request.sender.sent) for request in requests] == [0, 1, 1]
    assert requests[2].sender.sent[0][1] == pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    assert recorded["ge_early_replies_total", ()] == 2


def test_a_reply_without_room_fails_alone(execute, monkeypatch):
    """In a list it would fail the others, and is UNAVAILABLE."""
    from ge_backend.host import room

    state = SimpleNamespace(f_blocks=1, f_bavail=0, f_frsize=1)
    monkeypatch.setattr(room.os, "statvfs", lambda _: state)
    region = SimpleNamespace(free_memory=lambda: room.SMALL_MARGIN_BYTES + 8)
    inside = SimpleNamespace(shared_memory=region)
    monkeypatch.setitem(sys.modules, "c_python_backend_utils", inside)
    responses, _, recorded = execute(echo(), ints([1], [2, 3], [4]))
    assert [response.has_error() for response in responses] == [False, True, False]
    assert "takes 16 B" in responses[1].error().message()
    assert recorded["ge_request_failures_total", (("status", "UNAVAILABLE"),)] == 1


def test_an_early_reply_that_cannot_be_sent_costs_its_neighbours_nothing(
    execute, pb_utils, monkeypatch
):
    """As one that shared memory has no room for; the request is over, and counts as failed."""

    def send(sender, response=None, flags=0):
        if response.output_tensors()[0].as_numpy().tolist() == [[2]]:
            raise RuntimeError("Failed to increase the shared memory pool size")
        sender.sent.append((response, flags))

    monkeypatch.setattr(pb_utils.Sender, "send", send)
    responses, requests, recorded = execute(echo(remaining_ns=1e9), ints([1], [2], [3]))
    assert not responses[0].has_error()
    assert responses[1:] == [None, None]
    assert [len(request.sender.sent) for request in requests] == [0, 0, 1]
    assert recorded["ge_early_replies_total", ()] == 1
    assert recorded["ge_request_failures_total", (("status", "INTERNAL"),)] == 1


def test_a_reply_is_not_held_up_by_an_executor_that_says_nothing(execute):
    """Even the last of a batch is sent at once, since the batch may take for ever."""
    responses, requests, _ = execute(echo(remaining_ns=math.inf, failing={0}), ints([1]))
    assert responses == [None]
    assert requests[0].sender.sent[0][0].has_error()


def test_a_defect_answers_everything_that_is_open(execute):
    """An unforeseen exception becomes an INTERNAL error of the unanswered requests only."""

    def broken(requests):
        yield next(echo()(requests))
        raise ZeroDivisionError("oops")

    responses, _, recorded = execute(broken, ints([1], [2]))
    assert [response.has_error() for response in responses] == [True, False]
    assert responses[0].error().code() == "INTERNAL"
    assert "ZeroDivisionError: oops" in responses[0].error().message()
    assert recorded["ge_request_failures_total", (("status", "INTERNAL"),)] == 1


def test_readiness_is_that_of_the_devices(pb_utils):
    """A host that asks is told whether some device can be used; older ones never ask."""
    from ge_backend.host.backend import Backend

    closing = SimpleNamespace(close=lambda: None)
    for ready in (True, False):
        pipeline = SimpleNamespace(ready=ready)
        assert Backend(configured(), pipeline, [closing]).ready is ready


@pytest.fixture
def queued(pb_utils):
    """A backend with a queue of its own; returns (backend, function that makes a request)."""
    from ge_backend.host.backend import Backend

    backends = []

    def make(answer, *, warm_ups=0, **policy):
        queue = QueuePolicy(**{"max_size": 0, "timeout_us": 0, **policy})
        closing = SimpleNamespace(close=lambda: None)
        pipeline = FakePipeline(answer)
        pipeline.close = lambda: None
        backends.append(Backend(configured(queue=queue), pipeline, [closing], warm_ups=warm_ups))
        return backends[-1], lambda array: pb_utils.InferenceRequest(
            [pb_utils.Tensor("x", array)], ["y"]
        )

    yield make
    for backend in backends:
        backend.close()


def test_with_bounds_requests_wait_in_the_backend(queued):
    """The host gets nothing back at once; each answer, or error, goes through its sender."""
    backend, request = queued(echo(failing={1}), max_size=3)
    requests = [request(array) for array in ints([1], [2], [3])]
    assert backend.execute(requests) == [None] * 3
    assert comes_true(lambda: all(each.sender.sent for each in requests))
    responses = [each.sender.sent[0][0] for each in requests]
    assert [response.has_error() for response in responses] == [False, True, False]
    assert responses[2].output_tensors()[0].as_numpy().tolist() == [[3]]


def test_the_hosts_own_warm_up_knows_no_bounds(queued):
    """Its answers are returned, since an error that is sent can end the host."""
    seen = []

    def answer(requests):
        seen.extend(request.deadline_ns for request in requests)
        return echo(failing={1})(requests)

    backend, request = queued(answer, warm_ups=2, max_size=1, timeout_us=60_000_000)
    for _ in range(2):
        responses = backend.execute([request(array) for array in ints([1], [2], [3])])
        assert [response.has_error() for response in responses] == [False, True, False]
    assert seen == [0] * 6
    assert backend.execute([request(array) for array in ints([1], [2])]) == [None] * 2


def test_the_default_timeout_is_a_deadline_of_each_request(queued):
    """It counts from when the host hands the request over, and reaches the executor."""
    seen = []

    def answer(requests):
        seen.extend(request.deadline_ns for request in requests)
        return echo()(requests)

    backend, request = queued(answer, timeout_us=60_000_000)
    before = time.monotonic_ns()
    backend.execute([request(array) for array in ints([1], [2])])
    assert comes_true(lambda: len(seen) == 2)
    assert seen[0] == seen[1]
    assert 60 * 10**9 <= seen[0] - before < 120 * 10**9
