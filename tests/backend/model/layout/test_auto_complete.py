"""What config.pbtxt leaves out comes from the graph, and nothing else is touched."""

from pathlib import Path

import pytest

from ge_backend.errors import ConfigError
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.auto_complete import completed
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec


def spec(name, dtype, dims, axes, **more):
    return TensorSpec(name=name, dtype=DATA_TYPES[dtype], dims=dims, axes=axes, **more)


IDS = spec("input_ids", "INT64", (-1, -1), ("batch", "sequence"))
MASK = spec("attention_mask", "INT64", (-1, -1), ("batch", "sequence"))
OUT = spec("y", "FP32", (-1, 384), ("batch", ""))


def complete(inputs, outputs, limits=None, **given):
    config = {"name": "m", **given}
    ours = ModelConfig.read(config, directory=Path("nowhere/1"), version="1", environment={})
    signature = Signature(inputs=tuple(inputs), outputs=tuple(outputs), axis_limits=limits or {})
    return completed(config, ours, signature)


def test_an_encoder_becomes_ragged_and_batched():
    """A graph with a mask can be padded without harm, and its mask need not be sent."""
    config = complete([IDS, MASK], [OUT])
    assert config == {
        "name": "m",
        "max_batch_size": 32,
        "input": [
            {
                "name": "input_ids",
                "data_type": "TYPE_INT64",
                "dims": [-1],
                "optional": False,
                "allow_ragged_batch": True,
            },
            {
                "name": "attention_mask",
                "data_type": "TYPE_INT64",
                "dims": [-1],
                "optional": True,
                "allow_ragged_batch": True,
            },
        ],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [384]}],
        "dynamic_batching": {},
    }


@pytest.mark.parametrize("batched", [False, True])
def test_what_a_graph_runs_without_need_not_be_sent(batched):
    """Batched or not; nothing has to be made for that."""
    extra = spec("extra", "INT64", (-1, -1), ("batch", "sequence"), optional=True)
    config = complete([IDS, MASK, extra], [OUT if batched else spec("y", "FP32", (1,), ("",))])
    assert [each["optional"] for each in config["input"]] == [False, batched, True]


def test_axes_without_names_follow_no_mask():
    """Nobody knows which of them are one: padding might be harmful, and a mask cannot be made."""
    ids, mask = (
        spec(name, "INT64", (-1, -1), ("", "")) for name in ("input_ids", "attention_mask")
    )
    other = spec("regions", "FP32", (-1, -1, 4), ("", "", ""))

    def told(**parameters):
        given = {key: {"string_value": text} for key, text in parameters.items()}
        config = complete([ids, mask, other], [OUT], max_batch_size=8, parameters=given)
        return [(it["optional"], it.get("allow_ragged_batch", False)) for it in config["input"]]

    assert told() == [(False, False)] * 3
    named = {f"axes.{name}": "batch,length" for name in ("input_ids", "attention_mask")}
    assert told(**named) == [(False, True), (True, True), (False, False)]


def test_a_compiled_file_says_how_large_a_batch_may_be():
    """Its largest gear counts, beyond the default too; what leaves it open has the default."""
    signature = Signature(inputs=(IDS,), outputs=(OUT,), axis_limits={"batch": 64})
    ours = ModelConfig.read({"name": "m"}, directory=Path("nowhere/1"), version="1", environment={})
    shapes = ({"input_ids": (64, 8)},)
    assert completed({"name": "m"}, ours, signature, shapes)["max_batch_size"] == 64
    assert completed({"name": "m"}, ours, signature)["max_batch_size"] == 32


@pytest.mark.parametrize("value", ["0", "1"])
def test_rows_that_run_alone_are_not_collected(value):
    """Such a model would not load with what had been filled in."""
    whole = complete([IDS], [OUT], parameters={"static_model": {"string_value": value}})
    assert ("dynamic_batching" in whole) == (value == "0")
    ModelConfig.read(whole, directory=Path("nowhere/1"), version="1", environment={})


def test_a_batch_that_config_pbtxt_names_is_as_large_as_the_file_says():
    """Whatever the file called it, as torch.export does."""
    ids = spec("input_ids", "INT64", (-1, -1), ("s77", "s12"))
    out = spec("y", "FP32", (-1, 384), ("s77", ""))
    parameters = {
        "axes.input_ids": {"string_value": "batch,sequence"},
        "axes.y": {"string_value": "batch,"},
    }
    assert complete([ids], [out], {"s77": 16})["max_batch_size"] == 16
    assert complete([ids], [out], {"s77": 16}, parameters=parameters)["max_batch_size"] == 16


def test_one_value_per_row_is_reshaped():
    """The host takes no empty dims."""
    score = spec("score", "FP32", (-1,), ("batch",))
    assert complete([IDS], [score])["output"] == [
        {"name": "score", "data_type": "TYPE_FP32", "dims": [1], "reshape": {"shape": []}}
    ]


def test_a_file_of_one_shape_has_no_batch_dimension():
    """Unless the configuration says so: then its first dimension is the rows."""
    fixed = [spec("x", "FP32", (8, 128), ("", ""))], [spec("y", "FP32", (8, 2), ("", ""))]
    assert complete(*fixed)["max_batch_size"] == 0
    assert complete(*fixed)["input"][0]["dims"] == [8, 128]
    batched = complete(*fixed, max_batch_size=8)
    assert (batched["input"][0]["dims"], batched["output"][0]["dims"]) == ([128], [2])


def test_without_a_mask_nothing_is_ragged():
    """Padding could change the result of an unknown graph."""
    assert "allow_ragged_batch" not in complete([IDS], [OUT])["input"][0]


@pytest.mark.parametrize(
    ("outputs", "limits", "rows"),
    [
        ([OUT], {"batch": 8}, 8),
        ([spec("y", "FP32", (-1,), ("other",))], {}, 0),
        ([spec("y", "FP32", (2,), ("",))], {}, 0),
    ],
)
def test_batching_follows_the_graph(outputs, limits, rows):
    """There is a batch where every tensor begins with the same free axis, up to its limit."""
    config = complete([IDS], outputs, limits)
    assert config["max_batch_size"] == rows
    assert ("dynamic_batching" in config) == (rows > 0)
    assert config["input"][0]["dims"] == ([-1] if rows else [-1, -1])


def test_who_declares_all_dimensions_of_a_tensor_wants_no_batches():
    """Triton's own backends take it so; a default batch size would contradict what is written."""
    given = {"name": "input_ids", "data_type": "TYPE_INT64", "dims": [-1, -1]}
    config = complete([IDS], [OUT], input=[given])
    assert config["max_batch_size"] == 0
    assert config["input"] == [given]
    assert config["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1, 384]}]
    assert "dynamic_batching" not in config


def test_first_axes_of_different_names_are_told(caplog):
    """Some exporters name each anew; whoever wonders why nothing is batched finds it in the log."""
    first = spec("a", "FP32", (-1, 4), ("unk_1", ""))
    second = spec("y", "FP32", (-1, 4), ("unk_2", ""))
    assert complete([first], [second])["max_batch_size"] == 0
    assert "not batched: the first axes of the tensors have the names unk_1, unk_2" in caplog.text
    caplog.clear()
    named = {"axes.y": {"string_value": "unk_1,width"}}
    assert complete([first], [second], parameters=named)["max_batch_size"] == 32
    assert caplog.text == ""


def test_rows_that_are_compared_with_each_other_are_not_batched(caplog):
    """A request would be told of its neighbours'; the log says which tensor it is."""
    vectors = spec("x", "FP32", (-1, 4), ("batch", ""))
    similarities = spec("y", "FP32", (-1, -1), ("batch", "batch"))
    config = complete([vectors], [similarities])
    assert (config["max_batch_size"], config["output"][0]["dims"]) == (0, [-1, -1])
    assert (
        "not batched: the batch's axis 'batch' comes again behind the first of 'y'" in caplog.text
    )
    named = {"axes.y": {"string_value": "batch,others"}}
    assert complete([vectors], [similarities], parameters=named)["max_batch_size"] == 32


@pytest.mark.parametrize("made", [False, True])
def test_a_scalar_is_one_value_without_a_batch_dimension(made):
    """The host knows none and takes no reshape there; where it is made, nobody has to send it."""
    said = {"parameters": {"generate.k": {"string_value": "3"}}} if made else {}
    config = complete([spec("k", "INT64", (), ()), IDS], [OUT], **said)
    assert config["max_batch_size"] == 0
    assert config["input"][0] == {
        "name": "k",
        "data_type": "TYPE_INT64",
        "dims": [1],
        "optional": made,
    }


SCALE = spec("logit_scale", "FP32", (), ())


def test_an_output_without_dimensions_is_left_out(caplog):
    """The host knows none without a batch, and a batch has none; the others are served, batched."""
    config = complete([IDS], [OUT, SCALE])
    assert [tensor["name"] for tensor in config["output"]] == ["y"]
    assert config["max_batch_size"] == 32
    assert "left out logit_scale: a scalar, or of a shape that is not in the file" in caplog.text
    other = spec("y", "FP32", (-1, 4), ("images", ""))
    alone = complete([IDS], [SCALE, other])
    assert (alone["max_batch_size"], len(alone["output"])) == (0, 1)
    caplog.clear()
    given = {"name": "y", "data_type": "TYPE_FP32", "dims": [384]}
    assert complete([IDS], [OUT, SCALE], output=[given])["output"] == [given]
    assert caplog.text == ""


def test_an_output_without_dimensions_that_is_declared_leaves_no_batch():
    """A batch has none, so the other tensors are declared whole."""
    one = {"name": "logit_scale", "data_type": "TYPE_FP32", "dims": [1]}
    config = complete([IDS], [OUT, SCALE], output=[one])
    assert (config["max_batch_size"], config["output"]) == (0, [one])
    assert config["input"][0]["dims"] == [-1, -1]


def test_outputs_of_which_none_has_dimensions_are_refused():
    """The host's own words for it are about a reshape that nobody wrote."""
    with pytest.raises(ConfigError, match=r"outputs \(logit_scale\) are scalars, or their shapes"):
        complete([IDS], [SCALE])


def test_what_is_given_stays():
    """A configuration that names its tensors is whole; one of both kinds is filled in."""
    tensor = {"name": "y", "data_type": "TYPE_FP32", "dims": [384]}
    whole = {"input": [tensor], "output": [tensor], "max_batch_size": 4}
    assert complete([IDS], [OUT], **whole) == {"name": "m", **whole}
    half = complete([IDS, MASK], [OUT], output=[tensor], max_batch_size=4, sequence_batching={})
    assert half["output"] == [tensor]
    assert half["max_batch_size"] == 4
    assert [block["name"] for block in half["input"]] == ["input_ids", "attention_mask"]
    assert "dynamic_batching" not in half


def test_what_a_sequence_adds_is_not_for_clients():
    """The host sends controls, states stay with us; their axes still tell whether there are batches."""
    vector = ("FP32", (-1, 4), ("batch", ""))
    inputs = [spec(name, *vector) for name in ("x", "h", "START")]
    outputs = [spec(name, *vector) for name in ("y", "h_next")]
    state = {"input_name": "h", "output_name": "h_next", "data_type": "TYPE_FP32", "dims": [4]}
    start = {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START"}]}
    block = {"direct": {}, "control_input": [start], "state": [state]}
    config = complete(inputs, outputs, sequence_batching=block)
    assert [tensor["name"] for tensor in config["input"]] == ["x"]
    assert [tensor["name"] for tensor in config["output"]] == ["y"]
    assert config["max_batch_size"] == 32
    inputs[1] = spec("h", "FP32", (8, 4), ("", ""))
    assert complete(inputs, outputs, sequence_batching=block)["max_batch_size"] == 0


@pytest.mark.parametrize(("inputs", "what"), [([], "input"), ([IDS], "output")])
def test_what_no_one_says_is_refused(inputs, what):
    """A TorchScript file does not say what it takes: the message says to declare it."""
    with pytest.raises(ConfigError, match=f"at least one {what}, none were specified; .* declare"):
        complete(inputs, [])


def test_a_graph_without_inputs_is_called_that():
    """Its file does say what tensors it has, and to declare them would change nothing."""
    with pytest.raises(ConfigError, match=r"the graph has no inputs, .* give it an input"):
        complete([], [IDS])
