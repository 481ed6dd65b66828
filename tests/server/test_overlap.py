"""One instance, two batches under way: a run that takes long holds up only its own batch."""

import json
import os
import signal
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from benchmarks.trust.faults import executors
from tritonclient.utils import InferenceServerException

from builders.graphs import parameters, write_model
from builders.null_models import comes_true
from builders.scheduled import FAILING, HELD, Scheduled
from fakes.null_device import EXECUTORS

RUN_MS = 8
DELAY = "dynamic_batching { max_queue_delay_microseconds: 50000 }"
ROWS = 4
CLIENTS, REQUESTS = 12, 12


def write_slow(repository, name, folder, **settings):
    """Write a model of one instance whose runs take `RUN_MS`, of `HELD` until `folder/777` goes."""
    config = f"""
max_batch_size: {ROWS}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
{DELAY}
"""
    given = {"device": "null", "warmup": "off", "lanes": 2, "overlap": "on"}
    write_model(repository, name, config + parameters(**given | settings))
    tensor = {"dtype": "FP32", "dims": ["batch", 1]}
    graph = {
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "y", **tensor, "compute": "echo", "of": "x"}],
        "cost_ms": {"*": RUN_MS},
        "faults": [
            {"on": "run", "do": "hold", "value": HELD, "file": str(folder / f"{HELD:.0f}")},
            {"on": "run", "do": "fail", "value": FAILING},
        ],
    }
    (repository / name / "1").mkdir(exist_ok=True)
    (repository / name / "1" / "model.null").write_text(json.dumps(graph))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the file of a held run is."""
    return tmp_path_factory.mktemp("held")


@pytest.fixture(scope="module")
def server(triton_server, tmp_path_factory, folder):
    models = tmp_path_factory.mktemp("models")
    write_slow(models, "slow", folder)
    write_slow(models, "inline", folder, executor="inline")
    write_slow(models, "one_by_one", folder, overlap="off")
    write_slow(models, "bounded", folder, max_queue_size=100)
    return triton_server(
        models,
        environment=EXECUTORS,
        arguments=("--model-control-mode=explicit", "--load-model=*"),
    )


@pytest.fixture
def host(server, folder):
    scheduled = Scheduled(server, folder)
    yield scheduled
    scheduled.close()


def overlapped(host, model):
    return host.figure("ge_overlapped_batches_total", model=model)


def answered(host, model, values):
    """Send values at once; return the answers, or the status with which one was refused."""
    answers = [host.send(model, value) for value in values]
    return [result(answer) for answer in answers]


def result(answer):
    try:
        return answer.get().as_numpy("y")[0, 0]
    except InferenceServerException as error:
        return error.status()


def widened(host, model):
    """Send until batches go on beside each other."""

    def tried():
        assert answered(host, model, range(3 * ROWS)) == [*range(3 * ROWS)]
        return overlapped(host, model) > 0

    return comes_true(tried, 60)


def test_a_batch_does_not_wait_for_the_one_before(host):
    """Where a lane is free; each client gets its own answer."""
    assert widened(host, "slow")
    first = [host.send("slow", value) for value in (HELD, 1)]
    assert comes_true(host.held, 30)
    assert answered(host, "slow", [5, 6]) == [5, 6]
    assert host.ask("slow", 7) == 7
    assert not any(answer.done for answer in first)
    host.let_go()
    assert [result(answer) for answer in first] == [HELD, 1]


def test_batches_inside_the_instance_go_on_beside_each_other_too(host):
    """There each has a connection to one executor."""
    assert widened(host, "inline")


@pytest.mark.parametrize("model", ["one_by_one", "bounded"])
def test_batches_go_on_one_by_one_where_it_is_not_asked_for_or_cannot_be(host, model):
    """The host's own durations are right then; a model's own queue has one batch at a time."""
    for _ in range(6):
        assert answered(host, model, range(3 * ROWS)) == [*range(3 * ROWS)]
    assert overlapped(host, model) == 0


def test_a_request_that_fails_does_so_alone(host):
    """Its neighbours of the batch, and those of the batch beside, are answered."""
    assert widened(host, "slow")
    got = answered(host, "slow", [1, FAILING, 2, 3, 4, 5, FAILING, 6, 7, 8])
    failed = "StatusCode.INTERNAL"
    assert got == [1, failed, 2, 3, 4, 5, failed, 6, 7, 8]


def test_a_killed_executor_loses_no_answer(host, server):
    """Of many clients, with two batches under way."""
    assert widened(host, "slow")
    got, begun = {}, threading.Barrier(CLIENTS + 1)

    def work(client):
        begun.wait()
        with grpcclient.InferenceServerClient(server.grpc) as connection:
            for number in range(REQUESTS):
                value = client * REQUESTS + number
                x = grpcclient.InferInput("x", [1, 1], "FP32")
                x.set_data_from_numpy(np.full((1, 1), value, np.float32))
                got[value] = connection.infer("slow", [x]).as_numpy("y")[0, 0]

    threads = [threading.Thread(target=work, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    begun.wait()
    for _ in range(2):
        assert comes_true(lambda: len(got) > CLIENTS)
        for pid in executors(server):
            os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert got == {value: value for value in range(CLIENTS * REQUESTS)}


def test_unloading_answers_what_is_under_way(host):
    """And the model can be loaded again."""
    assert widened(host, "slow")
    waiting = [host.send("slow", value) for value in (HELD, 1)]
    assert comes_true(host.held, 30)
    host.client.unload_model("slow")
    host.let_go()
    assert [result(answer) for answer in waiting] == [HELD, 1]
    assert comes_true(lambda: not host.client.is_model_ready("slow"), 30)
    host.client.load_model("slow")
    assert host.ask("slow", 4) == 4
