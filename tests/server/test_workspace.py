"""Models that share a workspace pool on the real server: who is served, refused, and given up."""

import contextlib
import json
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from builders.graphs import parameters, write_model
from builders.metrics import metric
from builders.regions import Answer
from fakes.null_device import EXECUTORS

CONFIG = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]
max_batch_size: 8
"""
POOL = 12_000
HELD = 5.0  # a run of this value waits until the test lets it go on
NEEDS = {"a": 8_000, "b": 6_000, "large": 13_000}


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    """The file that a held run makes, and that the test removes to let it go on."""
    return tmp_path_factory.mktemp("gate") / "held"


@pytest.fixture(scope="module")
def server(tmp_path_factory, triton_server, gate):
    models = tmp_path_factory.mktemp("models")
    for name, nbytes in NEEDS.items():
        model = {
            "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
            "outputs": [
                {"name": "y", "dtype": "FP32", "dims": ["batch"], "compute": "sum", "of": "x"}
            ],
            "axis_limits": {"length": 16},
            "workspace_bytes": nbytes,
            "faults": [{"on": "run", "do": "hold", "value": HELD, "file": str(gate)}],
        }
        config = CONFIG + parameters(device="null", buckets__rows="1", priority="1")
        write_model(models, name, config, json.dumps(model).encode(), "model.null")
    return triton_server(
        models,
        environment={**EXECUTORS, "GE_WORKSPACE_POOL": f"null={POOL},1GiB"},
        arguments=("--model-control-mode=explicit", "--load-model=a", "--load-model=b"),
    )


def rows_of(value):
    tensor = grpcclient.InferInput("x", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.full((1, 3), value, np.float32))
    return [tensor]


def infer(client, name, value):
    return client.infer(name, rows_of(value)).as_numpy("y").item()


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_model_larger_than_the_pool_is_refused_when_it_is_loaded(client):
    """The operator reads what it needs, what there is, and who has it; the others serve on."""
    with pytest.raises(InferenceServerException) as caught:
        client.load_model("large")
    text = str(caught.value)
    for part in ("large/1/model.null", "needs 12.7 KiB", "11.72 KiB", "a/1/model.null", "GE_WORK"):
        assert part in text
    assert infer(client, "a", 2) == 6
    assert infer(client, "b", 3) == 9


def outstanding_s(server):
    return metric(server, "ge_device_outstanding_seconds", model="a")


def used_bytes(server):
    return metric(server, "ge_workspace_used_bytes", model="a")


@contextlib.contextmanager
def held(server, client, gate):
    """Let a request to `a` hold its bytes; yield it, and what the device then has to do.

    Gauges are up to half a second old, or older on a busy machine: until they have shown an idle
    device, they may be of the test before, and of its requests.
    """
    wait_until(lambda: (outstanding_s(server), used_bytes(server)) == (0, 0))
    holder = Answer(client, "a", rows_of(HELD))
    try:
        wait_until(gate.exists)
        wait_until(lambda: outstanding_s(server) > 0 and used_bytes(server) > NEEDS["a"])
        yield holder, outstanding_s(server)
    finally:
        gate.unlink(missing_ok=True)
    assert holder.get().as_numpy("y").item() == 3 * HELD


def test_a_request_that_is_given_up_while_it_waits_is_not_run(client, server, gate):
    """Its client goes away while a neighbour has the bytes; both are told, and counted."""
    wait_until(lambda: metric(server, "ge_workspace_pool_bytes", model="a") == POOL)
    with held(server, client, gate) as (holder, held_s):
        given_up = Answer(client, "b", rows_of(4))
        wait_until(lambda: outstanding_s(server) > held_s)
        given_up.call.cancel()
        failed = {"model": "b", "status": "CANCELLED"}
        wait_until(lambda: metric(server, "ge_request_failures_total", **failed) == 1)
        assert not holder.done


def test_a_request_that_waits_for_its_neighbour_is_counted(client, server, gate):
    """It is answered when the neighbour has ended, and the wait is a metric of its model."""
    before = metric(server, "ge_workspace_waits_total", model="b")
    with held(server, client, gate) as (holder, held_s):
        waiting = Answer(client, "b", rows_of(4))
        wait_until(lambda: outstanding_s(server) > held_s)
        assert (holder.done, waiting.done) == (False, False)
    assert waiting.get().as_numpy("y").item() == 12
    wait_until(lambda: metric(server, "ge_workspace_waits_total", model="b") == before + 1)
    wait_until(lambda: metric(server, "ge_workspace_wait_seconds_total", model="b") > 0)
