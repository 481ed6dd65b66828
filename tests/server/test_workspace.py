"""Models that share a workspace pool on the real server: who is served, refused, and given up."""

import json
import threading
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
        # Else buckets would be measured beside the tests, and wait for bytes that these hold.
        settings = {"buckets__rows": "1", "priority": "1", "warmup": "on"}
        config = CONFIG + parameters(device="null", **settings)
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


def test_a_request_that_is_given_up_while_it_waits_is_not_run(client, server, gate):
    """Its client goes away while a neighbour has the bytes; both are told, and counted."""
    wait_until(lambda: metric(server, "ge_workspace_pool_bytes", model="a") == POOL)
    results = []
    holder = threading.Thread(target=lambda: results.append(infer(client, "a", HELD)))
    holder.start()
    wait_until(gate.exists)
    wait_until(lambda: metric(server, "ge_workspace_used_bytes", model="a") > NEEDS["a"])
    held_s = metric(server, "ge_device_outstanding_seconds", model="a")
    given_up = Answer(client, "b", rows_of(4))
    wait_until(lambda: metric(server, "ge_device_outstanding_seconds", model="a") > held_s)
    given_up.call.cancel()
    failed = {"model": "b", "status": "CANCELLED"}
    wait_until(lambda: metric(server, "ge_request_failures_total", **failed) == 1)
    assert results == []
    gate.unlink()
    holder.join()
    assert results == [3 * HELD]


def test_a_request_that_waits_for_its_neighbour_is_counted(client, server, gate):
    """It is answered when the neighbour has ended, and the wait is a metric of its model."""
    before = metric(server, "ge_workspace_waits_total", model="b")
    results = {}

    def ask(name, value):
        results[name] = infer(client, name, value)

    threads = [threading.Thread(target=ask, args=("a", HELD))]
    threads[0].start()
    wait_until(gate.exists)
    wait_until(lambda: metric(server, "ge_workspace_used_bytes", model="a") > NEEDS["a"])
    held_s = metric(server, "ge_device_outstanding_seconds", model="a")
    threads.append(threading.Thread(target=ask, args=("b", 4)))
    threads[1].start()
    wait_until(lambda: metric(server, "ge_device_outstanding_seconds", model="a") > held_s)
    assert results == {}
    gate.unlink()
    for thread in threads:
        thread.join()
    assert results == {"a": 3 * HELD, "b": 12}
    wait_until(lambda: metric(server, "ge_workspace_waits_total", model="b") == before + 1)
    assert metric(server, "ge_workspace_wait_seconds_total", model="b") > 0
