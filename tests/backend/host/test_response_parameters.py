"""What responses say beside their outputs, where the host has a place for it."""

import json

import numpy as np
import pytest

from builders.host_config import instance_of
from builders.hosted_ensembles import CHAIN
from ge_backend.errors import ConfigError
from ge_backend.serving.batching.progress import RunNote

TENSOR = {"data_type": "TYPE_FP32", "dims": [-1]}
SETTINGS = {
    "device": "null",
    "executor": "inline",
    "warmup": "on",
    "buckets.rows": "1,4",
    "buckets.length": "8",
    "response_parameters": "on",
}
NAMED = {"dtype": "FP32", "dims": ["batch", "length"]}
GRAPH = {
    "static_shapes": True,
    "inputs": [{"name": "x", **NAMED}],
    "outputs": [{"name": "y", "of": "x", **NAMED}],
}
STEP = """
backend: "ge" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
"""


@pytest.fixture
def answered(newer_pb_utils, tmp_path, monkeypatch):
    """Returns a function that gives the parameters of the responses to requests of such shapes."""
    from ge_backend.host.backend import Backend

    monkeypatch.setenv("GE_CACHE_DIR", "off")
    monkeypatch.setattr(newer_pb_utils, "get_model_dir", lambda: str(tmp_path / "m" / "1"))

    def answer(*shapes, **parameters):
        (tmp_path / "m" / "1").mkdir(parents=True)
        (tmp_path / "m" / "1" / "model.null").write_text(json.dumps(GRAPH))
        document = {
            "name": "m",
            "max_batch_size": 4,
            "input": [{"name": "x", "allow_ragged_batch": True, **TENSOR}],
            "output": [{"name": "y", **TENSOR}],
            "parameters": {key: {"string_value": text} for key, text in parameters.items()},
        }
        backend = Backend.open(instance_of(document))
        requests = [
            newer_pb_utils.InferenceRequest(
                [newer_pb_utils.Tensor("x", np.ones(shape, np.float32))], ["y"]
            )
            for shape in shapes
        ]
        responses = backend.execute(requests)
        backend.close()
        assert not any(response.has_error() for response in responses)
        return [json.loads(response.parameters()) for response in responses]

    return answer


def test_requests_of_one_run_are_told_of_all_of_it(answered):
    """Its bucket, the real rows of all of them, and the elements that were nobody's."""
    told = answered((1, 3), (2, 5), **SETTINGS)
    assert told == [{"bucket": "4x8", "rows": 3, "padding": 4 * 8 - 3 - 2 * 5}] * 2


def test_nothing_is_said_unless_it_is_asked_for(answered):
    """What a client does not read it had better not be sent."""
    assert answered((1, 3), **{**SETTINGS, "response_parameters": "off"}) == [{}]


def test_each_step_of_a_fused_ensemble_tells_of_its_own_runs(answered, tmp_path):
    """By its name; the switch is the fused model's."""
    steps = {key: text for key, text in SETTINGS.items() if key != "response_parameters"}
    for name, rows in (("one", "1,4"), ("two", "2")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.null").write_text(json.dumps(GRAPH))
        given = "".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}\n'
            for key, text in {**steps, "buckets.rows": rows}.items()
        )
        (tmp_path / name / "config.pbtxt").write_text(STEP + given)
    (tmp_path / "chain" / "1").mkdir(parents=True)
    (tmp_path / "chain" / "config.pbtxt").write_text(CHAIN)
    (told,) = answered((1, 3), fuse="chain", response_parameters="on")
    assert told == {
        "one.bucket": "1x8",
        "one.rows": 1,
        "one.padding": 5,
        "two.bucket": "2x8",
        "two.rows": 1,
        "two.padding": 13,
    }


def test_several_runs_of_one_request_are_told_together(newer_pb_utils):
    """Shapes stand side by side, and numbers are added up; a response has one value of each."""
    from ge_backend.host.response_parameters import run_parameters

    runs = [
        RunNote(bucket="4x8", rows=4, padding=2),
        RunNote(bucket="1x8", rows=1, padding=3),
    ]
    assert run_parameters(runs) == {"bucket": "4x8,1x8", "rows": 5, "padding": 5}


def test_a_host_whose_responses_have_none_refuses_the_switch(pb_utils):
    """At load, with the release that brought them; without the switch nothing changes."""
    from ge_backend.host.response_parameters import check_response_parameters

    check_response_parameters(wanted=False)
    with pytest.raises(ConfigError, match=r"came with Triton 2\.55 \(25\.02\); leave it out"):
        check_response_parameters(wanted=True)


def test_a_model_is_refused_before_it_is_opened(pb_utils, monkeypatch):
    """Whatever kind it is of."""
    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: "/models/m/1")
    parameters = {"response_parameters": {"string_value": "on"}}
    with pytest.raises(ConfigError, match="response_parameters is on"):
        instance_of({"name": "m", "parameters": parameters})


def test_a_newer_host_takes_the_switch(newer_pb_utils, monkeypatch):
    """What a stub can see of its host is the class of responses."""
    monkeypatch.setattr(newer_pb_utils, "get_model_dir", lambda: "/models/m/1")
    parameters = {"response_parameters": {"string_value": "on"}}
    assert instance_of({"name": "m", "parameters": parameters}).config.response_parameters
