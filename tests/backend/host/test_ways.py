"""How long the ways of requests are, which bounds keep from growing again.

`pytest tests/backend/host/test_ways.py -s` prints them.
"""

import json

import numpy as np
import pytest

from builders.host_config import instance_of
from builders.hosted_ensembles import CHAIN
from builders.way import walked

TENSOR = {"data_type": "TYPE_FP32", "dims": [-1]}
SETTINGS = {"device": "null", "executor": "inline", "warmup": "off"}
GRAPH = {
    "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
    "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch", "length"], "of": "x"}],
}
STEP = {
    "inputs": [*GRAPH["inputs"], {"name": "h", "dtype": "FP32", "dims": ["batch", 2]}],
    "outputs": [*GRAPH["outputs"], {"name": "n", "dtype": "FP32", "dims": ["batch", 2], "of": "h"}],
}
SEQUENCE = {
    "sequence_batching": {
        "oldest": {},
        "state": [
            {"input_name": "h", "output_name": "n", "data_type": "TYPE_FP32", "dims": [2]},
        ],
    }
}
CONFIG = """
backend: "ge" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
PARAMETER = 'parameters { key: "%s" value { string_value: "%s" } }\n'

# Files and functions at most, which is what they are: where a way gets shorter, these follow.
ENCODER, SEQUENCE_STEP, FUSED = (24, 75), (29, 90), (27, 89)


@pytest.fixture
def opened(pb_utils, tmp_path, monkeypatch):
    """Returns a function that opens a model on the null device, all in this thread."""
    from ge_backend.host.backend import Backend

    backends = []
    monkeypatch.setenv("GE_CACHE_DIR", "off")
    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: str(tmp_path / "m" / "1"))

    def open_model(graph=GRAPH, parameters=SETTINGS, **blocks):
        (tmp_path / "m" / "1").mkdir(parents=True)
        (tmp_path / "m" / "1" / "model.null").write_text(json.dumps(graph))
        document = {
            "name": "m",
            "max_batch_size": 4,
            "input": [{"name": "x", **TENSOR}],
            "output": [{"name": "y", **TENSOR}],
            "parameters": {key: {"string_value": value} for key, value in parameters.items()},
            **blocks,
        }
        backends.append(Backend.open(instance_of(document)))
        return backends[-1]

    yield open_model
    for backend in backends:
        backend.close()


def way(pb_utils, backend, **told):
    """Return the way of one request of one row, which is answered rightly."""
    x = np.ones((1, 3), np.float32)
    request = pb_utils.InferenceRequest([pb_utils.Tensor("x", x)], ["y"], **told)
    answers = []
    found = walked(lambda: answers.extend(backend.execute([request])))
    assert not answers[0].has_error()
    return found


def hold(name, found, *, files, functions):
    print(f"{name}: {found.describe()}")
    assert found.files <= files
    assert len(found.functions) <= functions


def test_an_encoders_request(opened, pb_utils):
    """One request alone, by the thread that waits for it."""
    backend = opened()
    way(pb_utils, backend)  # what is only done once is not of the way
    hold("encoder", way(pb_utils, backend), files=ENCODER[0], functions=ENCODER[1])


def test_a_sequences_step(opened, pb_utils):
    """The second step of a sequence whose state stays on the device."""
    backend = opened(STEP, **SEQUENCE)
    way(pb_utils, backend, correlation_id=1, flags=1)
    found = way(pb_utils, backend, correlation_id=1)
    hold("sequence step", found, files=SEQUENCE_STEP[0], functions=SEQUENCE_STEP[1])


def test_a_fused_ensemble_of_two_steps(opened, pb_utils, tmp_path):
    """Both steps in one execution."""
    for name in ("one", "two"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.null").write_text(json.dumps(GRAPH))
        settings = "".join(PARAMETER % pair for pair in SETTINGS.items())
        (tmp_path / name / "config.pbtxt").write_text(CONFIG + settings)
    (tmp_path / "chain" / "1").mkdir(parents=True)
    (tmp_path / "chain" / "config.pbtxt").write_text(CHAIN)
    backend = opened(parameters={"fuse": "chain"})
    way(pb_utils, backend)
    hold("fused ensemble", way(pb_utils, backend), files=FUSED[0], functions=FUSED[1])
