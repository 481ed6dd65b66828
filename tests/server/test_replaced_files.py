"""What is served stays servable when its files are replaced by something that cannot be loaded."""

import os
import signal

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpcclient
from benchmarks.trust.faults import executors
from tritonclient.utils import InferenceServerException

from builders.graphs import RAGGED, TABLE, WIDTH, parameters, token_rows, write_model
from builders.null_models import comes_true

CONFIG = f"""
max_batch_size: 8
input [ {{ name: "ids" data_type: TYPE_INT64 {RAGGED} }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1, {WIDTH} ] }} ]
""" + parameters(buckets__rows="1", buckets__sequence="4", executor="process")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose weights are in a file beside it; another, `whole`, has them in its own."""
    models = tmp_path_factory.mktemp("models")
    write_model(models, "tokens", CONFIG)
    write_model(models, "whole", CONFIG, token_rows())
    file = models / "tokens" / "1" / "model.onnx"
    onnx.save(
        onnx.load_from_string(token_rows()),
        file,
        save_as_external_data=True,
        location="table.bin",
        size_threshold=0,
    )
    return file.parent


@pytest.fixture(scope="module")
def server(triton_server, folder):
    return triton_server(
        folder.parent.parent,
        arguments=("--model-control-mode=explicit", "--load-model=*"),
    )


def answer(server, model="tokens"):
    tensor = grpcclient.InferInput("ids", [1, 3], "INT64")
    tensor.set_data_from_numpy(np.array([[1, 2, 3]]))
    with grpcclient.InferenceServerClient(server.grpc) as client:
        return client.infer(model, [tensor], client_timeout=60).as_numpy("y")


def test_one_file_answers_at_a_time(server, folder):
    """Written over in place, while requests come one by one: the old one until it is loaded."""
    file = folder.parent.parent / "whole" / "1" / "model.onnx"
    file.write_bytes(token_rows(-TABLE))
    for _ in range(100):
        np.testing.assert_array_equal(answer(server, "whole"), TABLE[[[1, 2, 3]]])
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.load_model("whole")
    for _ in range(100):
        np.testing.assert_array_equal(answer(server, "whole"), -TABLE[[[1, 2, 3]]])


def test_the_model_goes_on_from_what_was_loaded(server, folder):
    """Files written over and an executor killed: the same answers, and a load is still refused."""
    good = {path: path.read_bytes() for path in folder.iterdir()}
    assert {path.name for path in good} == {"model.onnx", "table.bin"}
    np.testing.assert_array_equal(answer(server), TABLE[[[1, 2, 3]]])
    for path in good:
        path.write_bytes(b"garbage")
    for pid in executors(server):
        os.kill(pid, signal.SIGKILL)
    np.testing.assert_array_equal(answer(server), TABLE[[[1, 2, 3]]])
    with grpcclient.InferenceServerClient(server.grpc) as client:
        with pytest.raises(InferenceServerException):
            client.load_model("tokens")
        np.testing.assert_array_equal(answer(server), TABLE[[[1, 2, 3]]])
        for path, content in good.items():
            path.write_bytes(content)
        client.load_model("tokens")
    np.testing.assert_array_equal(answer(server), TABLE[[[1, 2, 3]]])
    run = server.directory.run
    copies = 2  # one of each model
    assert comes_true(lambda: len([f for f in run.glob("kept-*/*") if f.is_dir()]) == copies)
