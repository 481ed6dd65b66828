"""Reading the host's sequence_batching block."""

import pytest

from ge_backend.errors import ConfigError
from ge_backend.model.config.sequence_batching import SequenceBatching


def read(block, tmp_path, rows=4):
    config = {"name": "m", "max_batch_size": rows}
    if block is not None:
        config["sequence_batching"] = block
    return SequenceBatching.read(config, directory=tmp_path / "1")


def control(kind, name="C", **more):
    return {"name": name, "control": [{"kind": f"CONTROL_SEQUENCE_{kind}", **more}]}


def test_a_model_without_the_block_has_no_sequences(tmp_path):
    """None is returned, and everything else is as before."""
    assert read(None, tmp_path) is None


@pytest.mark.parametrize(
    ("block", "rows", "strategy", "capacity"),
    [
        ({}, 4, "direct", 4),
        ({"direct": {}}, 0, "direct", 1),
        ({"oldest": {"max_candidate_sequences": 16}}, 4, "oldest", 16),
        ({"oldest": {}}, 4, "oldest", 4),
    ],
)
def test_strategy_and_capacity(tmp_path, block, rows, strategy, capacity):
    """As many live as the host has slots or candidates for in one instance.

    Where it does not say whose place is taken, there are twice as many slots.
    """
    found = read(block, tmp_path, rows)
    assert (found.strategy, found.capacity) == (strategy, capacity)
    assert found.slots == (capacity if strategy == "direct" else 2 * capacity)


def test_the_idle_time_is_the_hosts(tmp_path):
    """Given or the default of one second; JSON gives 64-bit numbers as text."""
    assert read({}, tmp_path).idle_s == 1.0
    assert read({"max_sequence_idle_microseconds": "2500000"}, tmp_path).idle_s == 2.5


def test_controls_have_their_kinds_and_types(tmp_path):
    """The type of a flag is that of its two values; a correlation id names its own."""
    found = read(
        {
            "control_input": [
                control("START", "S", fp32_false_true=[0, 1]),
                control("END", "E", int32_false_true=[0, 1]),
                control("READY", "R", bool_false_true=[False, True]),
                control("CORRID", "I", data_type="TYPE_INT64"),
            ]
        },
        tmp_path,
    )
    assert [(c.name, c.kind, c.dtype.name) for c in found.controls] == [
        ("S", "START", "FP32"),
        ("E", "END", "INT32"),
        ("R", "READY", "BOOL"),
        ("I", "CORRID", "INT64"),
    ]


def test_a_string_correlation_id_control_is_refused(tmp_path):
    """This host fails every request of such a model; the error says what to do instead."""
    with pytest.raises(ConfigError, match=r"'I'.*TYPE_STRING.*leave the control out"):
        read({"control_input": [control("CORRID", "I", data_type="TYPE_STRING")]}, tmp_path)


def test_a_numeric_correlation_id_control_is_noted(tmp_path):
    """A text as the id can end an older host then; other controls are harmless."""
    assert read({"control_input": [control("START")]}, tmp_path).notes == ()
    (note,) = read({"control_input": [control("CORRID", "I")]}, tmp_path).notes
    assert "'I' takes the correlation id as a number" in note
    assert "a text as its id can end a host before 2.54 (25.01)" in note


def test_an_unknown_control_is_refused(tmp_path):
    """The kinds that exist are listed."""
    with pytest.raises(ConfigError, match="START, END, READY, CORRID"):
        read({"control_input": [control("PAUSE")]}, tmp_path)


def state(dims, **more):
    return {
        "input_name": "h",
        "output_name": "h_next",
        "data_type": "TYPE_FP32",
        "dims": dims,
        **more,
    }


def test_states_begin_with_zeros_or_a_file(tmp_path):
    """The file lies in initial_state/ of the model's folder."""
    found = read(
        {
            "state": [
                state([8]),
                state([-1, 2]),
                state([2], initial_state=[{"dims": [2], "data_file": "first"}]),
                state([-1], initial_state=[{"dims": [3], "zero_data": True}]),
            ]
        },
        tmp_path,
    )
    assert [s.initial_dims for s in found.states] == [(8,), (1, 2), (2,), (3,)]
    assert found.states[2].initial_file == str(tmp_path / "initial_state" / "first")
    assert found.states[0].initial_file == found.states[3].initial_file == ""


def test_an_iterative_sequence_is_refused(tmp_path):
    """The host would take each step for a sequence of its own, with the initial state."""
    assert read({"iterative_sequence": False}, tmp_path) is not None
    with pytest.raises(ConfigError, match=r"iterative_sequence, with which .*; remove it"):
        read({"iterative_sequence": True}, tmp_path)


@pytest.mark.parametrize("key", ["input_name", "output_name", "data_type"])
def test_a_state_that_is_not_wholly_declared_is_refused(tmp_path, key):
    """So is a control without a name."""
    block = {name: value for name, value in state([2]).items() if name != key}
    with pytest.raises(ConfigError, match=f"a state has no {key}"):
        read({"state": [block]}, tmp_path)
    unnamed = {name: value for name, value in control("START").items() if name != "name"}
    with pytest.raises(ConfigError, match="a control_input has no name"):
        read({"control_input": [unnamed]}, tmp_path)


@pytest.mark.parametrize("dims", [[3], [2, 2], [-1]])
def test_an_initial_state_of_another_shape_is_refused(tmp_path, dims):
    """Both shapes are named."""
    block = {"state": [state([2], initial_state=[{"dims": dims, "zero_data": True}])]}
    with pytest.raises(ConfigError, match=r"state 'h' has the dims \[2\] and begins with"):
        read(block, tmp_path)


def test_texts_that_begin_with_none_are_refused(tmp_path):
    """This host would refuse every START; numbers may begin so."""
    empty = state([-1], initial_state=[{"dims": [0], "zero_data": True}])
    assert read({"state": [empty]}, tmp_path).states[0].initial_dims == (0,)
    texts = {**empty, "data_type": "TYPE_STRING"}
    with pytest.raises(ConfigError, match=r"state 'h' holds texts and begins with \[0\].*leave"):
        read({"state": [texts]}, tmp_path)
    assert read({"state": [state([-1], data_type="TYPE_STRING")]}, tmp_path).states
