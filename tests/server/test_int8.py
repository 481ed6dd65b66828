"""Weights of eight bits by one line, on the real server: near answers, in less memory."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import np_to_triton_dtype

from builders.graphs import parameters, write_model
from builders.products import INNER, encoder, ids

pytest.importorskip("openvino")

from ge_backend.engines.ov.arithmetic import has_int8
from ge_backend.serving.assumptions.precision import cosine

WAYS = {
    "full": {"engine": "openvino"},
    "int8": {"precision": "int8"},
    "inline": {"precision": "int8", "executor": "inline"},
}


@pytest.fixture(scope="module")
def server(triton_server, tmp_path_factory):
    """A server with an encoder in full and in eight bits, and one that has none to lose."""
    models = tmp_path_factory.mktemp("models")
    for way, how in WAYS.items():
        write_model(models, f"encoder_{way}", "max_batch_size: 8\n" + parameters(**how), encoder())
    how = parameters(precision="int8")
    write_model(models, "encoder_spoilt", "max_batch_size: 8\n" + how, encoder(spoilt=True))
    return triton_server(models)


def ask(client, model, given):
    """Return the answer to one request."""
    inputs = []
    for name, array in given.items():
        item = grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        item.set_data_from_numpy(array)
        inputs.append(item)
    return client.infer(model, inputs).as_numpy("y")


@pytest.mark.parametrize("way", ["int8", "inline"])
def test_answers_are_near_those_in_full(client, way):
    """Of rows of all lengths; they are others, where there are such products."""
    for rows, length in ((1, 2), (3, 7), (8, 40)):
        given = ids(rows, length, seed=length)
        expected = ask(client, "encoder_full", given)
        found = ask(client, f"encoder_{way}", given)
        assert found.shape == (rows, INNER)
        assert cosine(expected, found) > 0.998
        assert not has_int8() or not np.array_equal(expected, found)


@pytest.mark.skipif(not has_int8(), reason="nothing is compressed here")
def test_a_model_that_loses_too_much_is_served_in_the_next_precision(client, server):
    """Its answers come all the same; the log says what it is served in, and why."""
    assert np.isfinite(ask(client, "encoder_spoilt", ids(3, 9))).all()
    log = server.log_tail(1000)
    assert "assumption 'precision' does not hold (cosine" in log
    assert "served in 'bf16'; the parameter 'assume: precision' keeps it" in log
