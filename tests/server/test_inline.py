"""Models whose executors are inline, and whose run never ends or whose server dies: a real one."""

import json
import os
import signal
import time

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from builders.graphs import parameters, write_model
from ge_backend.executor.process.host_processes import stubs_of

CONFIG = """
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] reshape: { shape: [ ] } } ]
""" + parameters(device="null", executor="inline", warmup="off")
GRAPH = {
    "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", 2]}],
    "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch"], "compute": "sum", "of": "x"}],
    "cost_ms": {"4x2": 600_000, "*": 1},
}


def test_a_run_that_never_ends_is_answered_and_ends_its_instance(triton_server, tmp_path):
    """With an error within the limit and some seconds; the log says why, and the server goes on."""
    write_model(tmp_path, "hangs", CONFIG, json.dumps(GRAPH).encode(), "model.null")
    server = triton_server(tmp_path, environment={"GE_RUN_TIMEOUT_S": "2"})
    with grpcclient.InferenceServerClient(server.grpc) as client:

        def infer(rows):
            x = grpcclient.InferInput("x", [rows, 2], "FP32")
            x.set_data_from_numpy(np.ones((rows, 2), np.float32))
            return client.infer("hangs", [x]).as_numpy("y")

        np.testing.assert_array_equal(infer(1), [[2]])
        begin = time.monotonic()
        with pytest.raises(InferenceServerException) as caught:
            infer(4)
        assert time.monotonic() - begin < 30
        assert caught.value.status() == "StatusCode.INTERNAL"
        with pytest.raises(InferenceServerException):
            infer(1)
        assert client.is_server_live()
    log = server.options.log_file.read_text()
    assert "GE_RUN_TIMEOUT_S allows 2: its executor ends" in log
    assert "ends with this process" in log


def test_stubs_of_a_server_that_was_killed_end_soon(triton_server, tmp_path):
    """Each would wait for it for ever, with Python's lock, as no executor is a process of its own."""
    models = ["one", "other"]
    for name in models:
        write_model(tmp_path, name, CONFIG, json.dumps(GRAPH).encode(), "model.null")
    server = triton_server(tmp_path)
    stubs = [psutil.Process(stub.pid) for stub in stubs_of(server.pid)]
    assert len(stubs) == len(models)
    os.kill(server.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(stubs, timeout=30)
    assert alive == []
