"""What a configuration lists, as the graph of a file that says nothing sees it."""

from ge_backend.model.config.declared import NOTHING_DECLARED, Declared
from ge_backend.model.config.model import ModelConfig

VALUE = {"data_type": "TYPE_FP32", "dims": [3]}
SEQUENCE = {
    "control_input": [
        {
            "name": "START__2",
            "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}],
        }
    ],
    "state": [
        {
            "input_name": "H__1",
            "output_name": "N__1",
            "data_type": "TYPE_INT64",
            "dims": [-1],
            "initial_state": [{"dims": [0]}],
        }
    ],
}


def declared(max_batch_size=4, **blocks):
    config = {"name": "m", "max_batch_size": max_batch_size, **blocks}
    return Declared.of(ModelConfig.read(config, directory="/m/1", version="1", environment={}))


def shown(specs):
    return {spec.name: spec.describe() for spec in specs}


def test_every_part_is_listed_with_its_batch_dimension():
    """Inputs, controls and states on one side, outputs and next states on the other."""
    found = declared(
        input=[{"name": "X__0", **VALUE}],
        output=[{"name": "Y__0", **VALUE}, {"name": "N__1", **VALUE}],
        sequence_batching=SEQUENCE,
    )
    assert shown(found.inputs) == {"X__0": "FP32 [?, 3]"}
    assert shown(found.controls) == {"START__2": "INT32 [?, 1]"}
    assert shown(found.states) == {"H__1": "INT64 [?, ?]"}
    assert shown(found.next_states) == {"N__1": "INT64 [?, ?]"}
    assert [spec.name for spec in found.signature.inputs] == ["X__0", "START__2", "H__1"]
    assert sorted(spec.name for spec in found.signature.outputs) == ["N__1", "Y__0"]


def test_without_a_batch_dimension_there_is_none():
    """`max_batch_size: 0` leaves dims as they are."""
    found = declared(0, input=[{"name": "x", **VALUE}], sequence_batching=SEQUENCE)
    assert shown(found.inputs) == {"x": "FP32 [3]"}
    assert shown(found.controls) == {"START__2": "INT32 [1]"}
    assert shown(found.states) == {"H__1": "INT64 [?]"}


def test_concatenated_inputs_are_flat_and_what_describes_them_is_listed():
    """As Triton's collector hands them to a graph: one dimension, item shapes two."""
    ragged = {
        "name": "x",
        "data_type": "TYPE_FP32",
        "dims": [-1, 2],
        "allow_ragged_batch": True,
    }
    blocks = [
        {"kind": kind, "target_name": [name], "data_type": "TYPE_FP32", "source_input": ["x"]}
        for kind, name in (("BATCH_ELEMENT_COUNT", "n"), ("BATCH_ITEM_SHAPE", "s"))
    ]
    found = declared(input=[ragged], batch_input=blocks)
    assert shown(found.inputs) == {"x": "FP32 [?]"}
    assert shown(found.described) == {"n": "FP32 [?]", "s": "FP32 [?, ?]"}


def test_reshaped_inputs_are_what_the_graph_sees():
    """The host reshapes before the backend gets them."""
    found = declared(
        input=[{"name": "x", "data_type": "TYPE_FP32", "dims": [1], "reshape": {"shape": []}}]
    )
    assert shown(found.inputs) == {"x": "FP32 [?]"}


def test_nothing_is_declared_where_nothing_is_listed():
    """Which is what a file with a signature of its own is loaded with."""
    assert declared() == NOTHING_DECLARED
    assert NOTHING_DECLARED.signature.inputs == ()
