"""What a client sent that the model does not take is INVALID_ARGUMENT, and its neighbours go on."""

import re
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from builders.graphs import (
    POSITIONS,
    RAGGED,
    TABLE,
    VOCABULARY,
    WIDTH,
    convolution,
    parameters,
    transposed,
    with_positions,
    write_model,
)
from builders.null_models import comes_true

CONFIG = f"""
max_batch_size: 8
input [ {{ name: "ids" data_type: TYPE_INT64 {RAGGED} }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1, {WIDTH} ] }} ]
dynamic_batching {{ max_queue_delay_microseconds: 50000 }}
""" + parameters(buckets__rows="1,4,8", buckets__length="4,8")


@pytest.fixture(scope="module")
def server(triton_server, tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    write_model(models, "tokens", CONFIG, with_positions())
    write_model(models, "sound", model=convolution())
    write_model(models, "turned", "max_batch_size: 0", transposed(("a", "b"), ("a", "c")))
    return triton_server(models)


@pytest.fixture(scope="module")
def url(server):
    return server.grpc


def infer(url, ids):
    tensor = grpcclient.InferInput("ids", [1, len(ids)], "INT64")
    tensor.set_data_from_numpy(np.array([ids]))
    with grpcclient.InferenceServerClient(url) as client:
        return client.infer("tokens", [tensor]).as_numpy("y")


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([1, VOCABULARY + 5, 2], f"'ids' holds {VOCABULARY + 5} at [0, 1]; the model takes"),
        ([1] * (POSITIONS + 1), f"of 'ids' is {POSITIONS + 1} long; the model takes at most 16"),
    ],
    ids=["index", "length"],
)
def test_the_client_is_told_what_the_model_does_not_take(url, ids, words):
    """With the input, what came and the limit; without a path of the server."""
    with pytest.raises(InferenceServerException) as refused:
        infer(url, ids)
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert words in refused.value.message()
    assert "/" not in refused.value.message()


def test_neighbours_of_such_a_request_are_answered(url):
    """They come in one batch with it."""
    answers = {}

    def ask(number):
        ids = [number, VOCABULARY + 1] if number == 3 else [number, number + 1]
        try:
            answers[number] = infer(url, ids)
        except InferenceServerException as error:
            answers[number] = error.status()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.pop(3) == "StatusCode.INVALID_ARGUMENT"
    places = np.arange(2, dtype=np.float32)[:, None]
    for number, answer in answers.items():
        np.testing.assert_allclose(answer[0], TABLE[[number, number + 1]] + places, rtol=1e-5)


def test_a_graph_that_takes_no_short_inputs_is_measured_at_larger_ones(server, url):
    """Without a warning for each bucket, and for what was tried before."""
    written = ""

    def measured():
        nonlocal written
        written = server.options.log_file.read_text()
        return re.search("ge sound: warm-up 6/6 rows=1 .* ms", written)

    assert comes_true(measured)
    assert "sound/1/model.onnx failed to run" not in written
    assert "ge sound: bucket rows" not in written


def test_a_client_whose_input_is_too_short_for_the_graph_is_told_so(url):
    """Where longer ones run; what the engine said is kept."""

    def hear(samples):
        tensor = grpcclient.InferInput("x", [1, 1, samples], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 1, samples), np.float32))
        with grpcclient.InferenceServerClient(url) as client:
            return client.infer("sound", [tensor]).as_numpy("y")

    assert hear(41).tolist() == [[[40, 40]]]
    with pytest.raises(
        InferenceServerException, match=r"not take 'x'.*Invalid input shape"
    ) as error:
        hear(3)
    assert error.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_a_batch_size_of_0_that_is_written_is_kept(url):
    """Although every tensor begins with a free axis: this output's is not the batch."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = grpcclient.InferInput("x", [2, 3], "FP32")
    tensor.set_data_from_numpy(x)
    with grpcclient.InferenceServerClient(url) as client:
        assert client.get_model_config("turned").config.max_batch_size == 0
        np.testing.assert_array_equal(client.infer("turned", [tensor]).as_numpy("y"), x.T)
