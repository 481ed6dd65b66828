"""One model on two devices behind the real server: work is shared by cost, and a lost one is missed."""

import json
import queue
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from builders.graphs import parameters, write_model
from builders.metrics import metric
from builders.null_models import comes_true
from builders.servers import server_options
from fakes.null_device import EXECUTORS
from fakes.null_faults import GONE
from ge_backend.executor.process.host_processes import stubs_of
from ge_tools.tritonserver import TritonServer, find_server
from ge_tools.watch.readings import device_lines
from ge_tools.watch.scrape import scrape

DEVICES = ("null", "null:1")
TWO = parameters(device="null", device_ids="0,1", buckets__rows="1,2,4", buckets__length="8,64,512")
CONFIG = (
    """
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]
dynamic_batching { max_queue_delay_microseconds: 2000 }
instance_group [ { count: 2 } ]
"""
    + TWO
)
QUEUED = CONFIG.replace("count: 2", "count: 1").replace(
    TWO, parameters(device="null:2", warmup="off", max_queue_size="64")
)
BOTH_UP = dict.fromkeys(DEVICES, True)
LENGTHS = (3, 8, 60, 400, 5, 512, 30, 7)
COSTS = {f"{r}x{n}": 0.02 * r * n for r in (1, 2, 4) for n in (8, 64, 512)}


def null_model(costs=COSTS):
    """Return a model whose runs cost what their shape says: long ones very much more."""
    return json.dumps(
        {
            "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
            "outputs": [
                {"name": "y", "dtype": "FP32", "dims": ["batch"], "compute": "sum", "of": "x"}
            ],
            "static_shapes": True,
            "cost_ms": costs,
        }
    ).encode()


@pytest.fixture(scope="module")
def gone(tmp_path_factory):
    """The folder that says which devices cannot be opened."""
    return tmp_path_factory.mktemp("gone")


@pytest.fixture(scope="module")
def server(tmp_path_factory, gone):
    models = tmp_path_factory.mktemp("models")
    write_model(models, "spread", CONFIG, null_model(), "model.null")
    write_model(models, "queued", QUEUED, null_model({"*": 500.0}), "model.null")
    options = server_options(
        models,
        log_file=tmp_path_factory.mktemp("log") / "server.log",
        environment={**EXECUTORS, GONE: str(gone)},
        exit_timeout_s=5,
        arguments=("--model-control-mode=explicit", "--load-model=*"),
    )
    with TritonServer(find_server(), options) as running:
        yield running


def ask(client, count, seed=0):
    """Send so many requests of unequal lengths at once; return how many were answered rightly."""
    lengths = np.random.default_rng(seed).choice(LENGTHS, count)
    done = queue.Queue()
    for length in lengths:
        item = grpcclient.InferInput("x", [1, int(length)], "FP32")
        item.set_data_from_numpy(np.ones((1, length), np.float32))
        client.async_infer(
            "spread", [item], lambda result, error, n=length: done.put((n, result, error))
        )
    right = 0
    for _ in lengths:
        length, result, error = done.get(timeout=60)
        right += error is None and float(result.as_numpy("y")[0, 0]) == float(length)
    return right


def kill(server, device):
    """Kill a device's executor, as soon as there is one."""
    found = []
    assert comes_true(lambda: found.append(executor(server, device)) or found[-1])
    found[-1].kill()


def executor(server, device):
    """Return a device's executor process; None while there is none."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if f"--device={device}" in words and any(str(server.directory.run) in w for w in words):
            return process
    return None


def up(server):
    return [metric(server, "ge_device_up", device=device) for device in DEVICES]


def test_unequal_requests_are_shared_by_cost(client, server):
    """Both devices run about as long, however unequal the runs are."""
    assert ask(client, 200) == 200
    assert comes_true(lambda: metric(server, "ge_requests_total", device="null,null:1") == 200)

    def shared():
        first, second = (metric(server, "ge_run_seconds_total", device=name) for name in DEVICES)
        return first + second > 0.5 and 0.4 * second < first < 2.5 * second

    # A run in which the machine did something else for a second counts less the more there are.
    assert comes_true(lambda: shared() or (ask(client, 200) == 200 and shared()), 60)
    assert up(server) == [1, 1]


def test_a_killed_executor_costs_no_request(client, server):
    """Its work is done by the other device meanwhile."""
    kill(server, "null:1")
    assert ask(client, 100, seed=1) == 100
    assert comes_true(lambda: executor(server, "null:1") is not None, 60)
    # What was told before this says of the one that is killed that it is up.
    assert comes_true(lambda: metric(server, "ge_executor_restarts_total", device="null:1") >= 1)
    assert comes_true(lambda: ask(client, 20, seed=2) == 20 and up(server) == [1, 1], 60)
    assert metric(server, "ge_executor_restarts_total", device="null") == 0


def test_a_lost_device_is_done_without_until_it_is_back(client, server, gone):
    """No request fails; metrics and log say what is missing; nobody has to restart anything."""
    (gone / "1").touch()
    kill(server, "null:1")
    # Both instances have to come across it before both say so.
    assert comes_true(lambda: ask(client, 20) == 20 and up(server) == [1, 0], 60)
    assert ask(client, 100, seed=3) == 100
    line = "device null:1 is lost and tried again in 1 s: device null:1 is gone"
    assert comes_true(lambda: line in server.options.log_file.read_text(errors="replace"), 60)
    (gone / "1").unlink()
    assert comes_true(lambda: up(server) == [1, 1], 60)
    before = metric(server, "ge_run_seconds_total", device="null:1")
    assert ask(client, 100, seed=4) == 100
    assert comes_true(lambda: metric(server, "ge_run_seconds_total", device="null:1") > before)


def test_with_all_devices_lost_requests_are_unavailable(client, server, gone):
    """And served again as soon as one is back."""
    for number, device in enumerate(DEVICES):
        (gone / str(number)).touch()
        kill(server, device)
    with pytest.raises(InferenceServerException, match="all devices are lost") as caught:
        ask_one(client)
    assert "UNAVAILABLE" in str(caught.value.status())
    (gone / "0").unlink()
    assert comes_true(lambda: served(client), 90)
    (gone / "1").unlink()
    assert comes_true(lambda: ask(client, 20) == 20 and up(server) == [1, 1], 120)


@pytest.fixture
def api(server):
    return server.options.api


def test_a_model_that_is_unloaded_tells_of_no_device(client, server, api, gone):
    """Else an alert would ring for ever, and `top` say that a device is lost which nobody uses."""
    (gone / "1").touch()
    kill(server, "null:1")
    # An instance that has not come across it says meanwhile that it is up.
    without = {"null": True, "null:1": False}
    assert comes_true(lambda: ask(client, 20) == 20 and devices(server, "spread") == without, 60)
    api.unload("spread")
    assert comes_true(lambda: not devices(server, "spread"), 60)
    assert comes_true(lambda: not spread_stubs(server), 60)  # they tell the rest as they end
    requests = metric(server, "ge_requests_total", model="spread")
    (gone / "1").unlink()
    api.load("spread")
    assert comes_true(lambda: devices(server, "spread") == BOTH_UP, 60)
    assert ask(client, 20) == 20
    assert comes_true(lambda: metric(server, "ge_requests_total", model="spread") == requests + 20)


def test_a_model_that_is_loaded_beside_itself_tells_of_its_devices(client, server, api):
    """The old instances take back what they have told after the new ones have told it."""
    old = spread_stubs(server)
    api.load("spread", api.served("spread"), times=1)
    assert ask(client, 100) == 100
    assert comes_true(lambda: not old & spread_stubs(server), 20)
    assert comes_true(lambda: devices(server, "spread") == BOTH_UP, 60)
    time.sleep(1)
    assert ask(client, 20) == 20
    assert devices(server, "spread") == BOTH_UP


def test_nothing_waits_any_more_in_a_stub_that_was_killed(client, server, api):
    """The model is loaded anew, and its queue is as long as it is."""
    item = grpcclient.InferInput("x", [4, 4], "FP32")
    item.set_data_from_numpy(np.ones((4, 4), np.float32))
    for _ in range(12):
        client.async_infer("queued", [item], lambda result, error: None, client_timeout=5)
    assert comes_true(lambda: waiting(server) > 0, 60)
    (stub,) = [stub for stub in stubs_of(server.pid) if stub.serves("queued", [])]
    psutil.Process(stub.pid).kill()
    api.unload("queued")
    api.load("queued")
    assert comes_true(lambda: waiting(server) == 0, 60)


def spread_stubs(server):
    """Return the processes of the instances of `spread`."""
    return {stub.pid for stub in stubs_of(server.pid) if stub.serves("spread", [])}


def waiting(server):
    return metric(server, "ge_backlog_requests", model="queued")


def devices(server, model):
    """Return whether the devices of a model are up, as `top` shows it."""
    reading = scrape(server.metrics)
    of_model = {key: value for key, value in reading.values.items() if ("model", model) in key[1]}
    reading = replace(reading, values=of_model)
    return {line.device: line.up for line in device_lines(reading, reading)}


def ask_one(client):
    item = grpcclient.InferInput("x", [1, 4], "FP32")
    item.set_data_from_numpy(np.ones((1, 4), np.float32))
    return client.infer("spread", [item])


def served(client):
    """Return whether both instances serve, as far as some requests tell."""
    try:
        for _ in range(8):
            ask_one(client)
    except InferenceServerException:
        time.sleep(0.1)
        return False
    return True
