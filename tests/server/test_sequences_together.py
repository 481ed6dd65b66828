"""What a sequence gets does not depend on who shares its batches."""

import collections
import contextlib
import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpcclient

from builders.null_models import comes_true
from builders.sequences import Steps
from builders.standstill import standing_still

MODEL, HIDDEN = "anomaly_detector", 16
SIGNALS, LENGTH = 12, 20


@pytest.fixture(scope="module")
def server(triton_server, made_models):
    """A real server with this one of the models of model_repository/."""
    explicit = ("--model-control-mode=explicit", f"--load-model={MODEL}")
    return triton_server(made_models, arguments=explicit)


def test_a_recurrent_network_gives_each_signal_what_it_gets_alone(server, made_models):
    """To the bit, where the engine itself gives a row the same in every batch.

    ONNX Runtime promises that nowhere: it may sum in another order for other numbers of rows, by
    the CPU's abilities. Then the difference is that of its sums.
    """
    signals = np.random.default_rng(5).standard_normal((SIGNALS, LENGTH)).astype(np.float32)
    before = executions(server)
    together = watch(server, dict(enumerate(signals, start=1)))
    # The host counts when the answers have gone out.
    assert comes_true(lambda: executions(server)[0] - before[0] == SIGNALS * LENGTH)
    assert executions(server)[1] - before[1] < SIGNALS * LENGTH
    alone = {
        name: watch(server, {name: signal})[name] for name, signal in enumerate(signals, start=1)
    }
    if rows_are_independent(made_models / MODEL / "1" / "model.onnx"):
        assert together == alone
    else:
        for name, scores in alone.items():
            assert np.allclose(together[name], scores, rtol=0, atol=1e-5)


def test_a_step_with_an_id_that_is_no_text_fails_alone(server):
    """HTTP carries it as the bytes that came; the steps in its batch know nothing of it."""
    signals = np.random.default_rng(7).standard_normal((SIGNALS, LENGTH)).astype(np.float32)
    told, over = collections.Counter(), threading.Event()

    def disturb():
        while not over.is_set():
            told[step_without_a_text(server.http)] += 1

    with ThreadPoolExecutor(2) as pool:
        disturbing = [pool.submit(disturb) for _ in range(2)]
        try:
            for _ in range(5):
                watch(server, dict(enumerate(signals, start=1)))
        finally:
            over.set()
        for one in disturbing:
            one.result(timeout=60)
    ((status, message),) = told
    assert status == 400
    assert "sequence_id is not UTF-8" in message


def step_without_a_text(host):
    """Send a sequence of one step whose id is not UTF-8; return the status and the message."""
    body = (
        b'{"parameters":{"sequence_id":"bad\xff","sequence_start":true,"sequence_end":true},'
        b'"inputs":[{"name":"value","datatype":"FP32","shape":[1,1],"data":[1]}]}'
    )
    connection = http.client.HTTPConnection(host, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", f"/v2/models/{MODEL}/infer", body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())["error"]


def watch(server, signals):
    """Send each signal as a sequence, all at once, step by step; return the scores of each."""
    scores = {name: [] for name in signals}
    with Steps(server.grpc, MODEL, given="value", wanted="score") as steps:
        for number in range(LENGTH):
            with standing_still(server):
                for name, signal in signals.items():
                    end = number == LENGTH - 1
                    steps.send(name, signal[number], start=number == 0, end=end)
            for name, found in steps.take(len(signals)).items():
                scores[name] += found
    return scores


def executions(server):
    """Return how many steps and how many batches the model has had."""
    with grpcclient.InferenceServerClient(server.grpc) as client:
        (stats,) = client.get_inference_statistics(MODEL).model_stats
    return stats.inference_count, stats.execution_count


def rows_are_independent(path):
    """Whether the engine computes every row of a batch as it does alone, to the bit."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(6)

    def run(inputs):
        return np.concatenate(session.run(None, inputs), axis=1)

    for rows in range(2, SIGNALS + 1):
        sizes = {"value": 1, "hidden": HIDDEN, "expected": 1}
        inputs = {
            name: generator.standard_normal((rows, size)).astype(np.float32)
            for name, size in sizes.items()
        }
        together = run(inputs)
        for row in range(rows):
            alone = run({name: array[row : row + 1] for name, array in inputs.items()})
            if alone.tobytes() != together[row : row + 1].tobytes():
                return False
    return True
