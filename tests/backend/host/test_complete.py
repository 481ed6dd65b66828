"""What config.pbtxt leaves out is filled in from the graph, and nothing else is touched."""

import json
import traceback

import pytest

from ge_backend.errors import ConfigError
from ge_backend.tensors import DATA_TYPES, PREPARED, Signature, TensorSpec


def spec(name, dtype, dims, axes):
    return TensorSpec(name=name, dtype=DATA_TYPES[dtype], dims=dims, axes=axes)


IDS = spec("input_ids", "INT64", (-1, -1), ("batch", "sequence"))
MASK = spec("attention_mask", "INT64", (-1, -1), ("batch", "sequence"))
OUT = spec("y", "FP32", (-1, 384), ("batch", ""))


def signature(inputs, outputs, **limits):
    return Signature(inputs=tuple(inputs), outputs=tuple(outputs), axis_limits=limits)


@pytest.fixture
def complete(pb_utils, monkeypatch, tmp_path):
    """Completes a configuration as if the graph had a signature; returns the dictionary."""
    from ge_backend.host import complete as module
    from ge_backend.serving import connect

    pb_utils.MODEL_DIR = str(tmp_path)

    def run(graph, **given):
        class Session:
            signature = graph
            shape_policy = PREPARED  # so that nothing is tested by running it
            closed = False

            def close(self):
                Session.closed = True

        monkeypatch.setattr(connect, "open_session", lambda *_, **__: Session())
        config = {"name": "m", "max_batch_size": 0, "input": [], "output": [], **given}
        completed = module.complete_config(pb_utils.ModelConfig(json.dumps(config)))
        assert Session.closed or given.get("input")
        return completed.as_dict()

    return run


def test_empty_configuration_of_an_encoder(complete):
    """A graph with a mask becomes a ragged, dynamically batched model whose mask is optional."""
    config = complete(signature([IDS, MASK], [OUT]))
    assert config["max_batch_size"] == 32
    assert config["dynamic_batching"] == {}
    ids, mask = config["input"]
    assert ids == {
        "name": "input_ids",
        "data_type": "TYPE_INT64",
        "dims": [-1],
        "optional": False,
        "allow_ragged_batch": True,
    }
    assert (mask["optional"], mask["allow_ragged_batch"]) == (True, True)
    assert config["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": [384]}]


def test_a_batch_size_of_0_that_is_written_is_kept(complete, pb_utils, tmp_path):
    """The host hands over 0 where nothing is written, too."""
    (tmp_path / "config.pbtxt").write_text('backend: "ge"\nmax_batch_size: 0\n')
    pb_utils.MODEL_DIR = str(tmp_path / "1")
    config = complete(signature([IDS, MASK], [OUT]))
    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config
    assert [item["dims"] for item in config["input"]] == [[-1, -1], [-1, -1]]


def test_without_a_mask_nothing_is_padded(complete):
    """Padding could change the result of an unknown graph, so its inputs are not made ragged."""
    config = complete(signature([IDS], [OUT]))
    assert config["max_batch_size"] == 32
    assert "allow_ragged_batch" not in config["input"][0]


def test_graph_limit_bounds_the_batch(complete):
    """The batch size is never more than the graph says it takes."""
    assert complete(signature([IDS], [OUT], batch=8))["max_batch_size"] == 8


@pytest.mark.parametrize(
    "graph",
    [
        signature([spec("x", "FP32", (2, 3), ("", ""))], [OUT]),
        signature([IDS], [spec("y", "FP32", (-1, 2), ("other", ""))]),
    ],
    ids=["fixed", "another name"],
)
def test_without_one_common_free_axis_there_is_no_batch(complete, graph):
    """Only a first axis that all tensors share can be the batch."""
    config = complete(graph)
    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config
    assert config["input"][0]["dims"] == list(graph.inputs[0].dims)


def test_outputs_without_dimensions_alone_are_refused(complete):
    """The host knows none without a batch, and would speak of a reshape that nobody wrote."""
    with pytest.raises(ConfigError, match=r"\(y\) are scalars.*give one of them a dimension"):
        complete(signature([IDS], [spec("y", "FP32", (), ())]))


def test_what_the_host_prints_of_a_refusal_is_where_it_came_to_the_host(complete):
    """It prints all frames of an error; that of a setting needs none."""
    with pytest.raises(ConfigError) as caught:
        complete(signature([IDS], [OUT]), parameters={"devise": {"string_value": "cpu"}})
    *_, last = traceback.extract_tb(caught.value.__traceback__)
    assert last.name == "complete_config"


def test_given_batch_size_is_kept(complete):
    """A configured max_batch_size decides that there is a batch dimension, and stays."""
    config = complete(signature([IDS], [OUT]), max_batch_size=4)
    assert config["max_batch_size"] == 4
    assert config["input"][0]["dims"] == [-1]


def test_complete_configuration_is_left_alone(complete):
    """With inputs and outputs named, the executor is not even asked."""
    given = {
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
    }
    config = complete(None, **given)
    assert (config["input"], config["output"], config["max_batch_size"]) == (
        given["input"],
        given["output"],
        0,
    )


def test_a_scheduler_is_not_replaced(complete):
    """Sequence batching, once chosen, stays the scheduler."""
    config = complete(signature([IDS], [OUT]), sequence_batching={})
    assert "dynamic_batching" not in config


def test_a_graph_that_is_named_beside_a_checkpoint_is_completed(complete, tmp_path):
    """The folder is served as that file then, whatever its config.json says."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    config = complete(signature([IDS, MASK], [OUT]), default_model_filename="encoder.onnx")
    assert [tensor["name"] for tensor in config["input"]] == ["input_ids", "attention_mask"]
