"""Controls and states of a graph, as clients do not see them."""

from dataclasses import replace

import pytest

from ge_backend.errors import ConfigError
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.layout import build_layout
from ge_backend.model.layout.sequence_tensors import hidden_outputs, with_controls, without_states
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec


def spec(name, dims=(-1, 2), dtype="FP32"):
    return TensorSpec(
        name=name, dtype=DATA_TYPES[dtype], dims=dims, axes=("batch", *[""] * (len(dims) - 1))
    )


GRAPH = Signature(
    inputs=(spec("x"), spec("START", (-1, 1)), spec("h")),
    outputs=(spec("y"), spec("n")),
    axis_limits={},
)


def config(
    states=(("h", "n", [2]),), inputs=("x",), outputs=("y",), learn="record", tmp_path="/m/1"
):
    return ModelConfig.read(
        {
            "name": "m",
            "max_batch_size": 4,
            "input": [{"name": n, "data_type": "TYPE_FP32", "dims": [2]} for n in inputs],
            "output": [{"name": n, "data_type": "TYPE_FP32", "dims": [2]} for n in outputs],
            "parameters": {"learn": {"string_value": learn}},
            "sequence_batching": {
                "control_input": [
                    {
                        "name": name,
                        "control": [
                            {"kind": f"CONTROL_SEQUENCE_{name}", "fp32_false_true": [0, 1]}
                        ],
                    }
                    for name in ("START", "END")
                ],
                "state": [
                    {"input_name": i, "output_name": o, "data_type": "TYPE_FP32", "dims": dims}
                    for i, o, dims in states
                ],
            },
        },
        directory=tmp_path,
        version="1",
        environment={},
    )


def test_clients_see_neither_states_nor_controls_of_the_host():
    """States are left out of the signature; controls that the graph has become inputs."""
    assert [s.name for s in without_states(config(), GRAPH).inputs] == ["x", "START"]
    assert [s.name for s in without_states(config(), GRAPH).outputs] == ["y"]
    assert [t.name for t in with_controls(config(), GRAPH).inputs] == ["x", "START"]


def test_a_layout_knows_its_states():
    """They are staged by nobody and given by the executor."""
    layout = build_layout(config(), GRAPH)
    assert [item.name for item in layout.inputs] == ["x", "START"]
    assert [item.name for item in layout.outputs] == ["y"]
    assert [state.input for state in layout.states] == ["h"]


def test_a_state_that_is_declared_as_an_output_stays_one():
    """Triton allows both."""
    both = config(outputs=("y", "n"))
    assert hidden_outputs(both) == ()
    assert [s.name for s in without_states(both, GRAPH).outputs] == ["y", "n"]


def test_a_model_without_sequences_is_left_as_it_is():
    """Nothing is hidden, nothing added."""
    plain = replace(config(), sequence=None)
    assert without_states(plain, GRAPH) is GRAPH
    assert with_controls(plain, GRAPH) is plain
    assert hidden_outputs(plain) == ()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            ("g", "n", [2]),
            "the state 'g', which the graph does not have; its inputs are x, START, h$",
        ),
        (("h", "m", [2]), "the state 'm', which the graph does not have; its outputs are y, n$"),
        (("h", "n", [3]), r"'h' is declared as FP32 \[3\]; the graph has FP32 \[batch, 2\]"),
        (("h", "n", [2, 1]), r"FP32 \[2, 1\]"),
    ],
)
def test_a_state_that_contradicts_the_graph_is_refused(state, message):
    """Both sides are named."""
    with pytest.raises(ConfigError, match=message):
        without_states(config(states=(state,)), GRAPH)


def test_a_state_that_is_declared_as_an_input_is_refused():
    """It is not said to be missing in the graph, which has it."""
    for graph in (GRAPH, replace(GRAPH, inputs=())):
        with pytest.raises(ConfigError, match=r"'h' is a state of sequence_batching.*remove it"):
            build_layout(config(inputs=("x", "h")), graph)


def test_a_state_of_another_type_than_the_graphs_is_refused():
    """Its bytes would be taken for other numbers."""
    graph = replace(GRAPH, outputs=(spec("y"), spec("n", dtype="INT32")))
    with pytest.raises(ConfigError, match=r"'n' is declared as FP32 \[2\]; .* INT32 \[batch, 2\]"):
        without_states(config(), graph)


def test_learning_to_serve_is_refused_with_states():
    """States stay with the connection that it would give up."""
    with pytest.raises(ConfigError, match="learn: serve"):
        without_states(config(learn="serve"), GRAPH)


def test_a_graph_without_a_signature_gets_what_is_declared():
    """TorchScript says neither names nor types: all controls are given to it, and all states."""
    silent = Signature(inputs=(), outputs=(), axis_limits={})
    layout = build_layout(config(), silent)
    assert [item.name for item in layout.inputs] == ["x", "START", "END"]
    assert [item.name for item in layout.outputs] == ["y"]
    assert [state.input for state in layout.states] == ["h"]


def stacked(given, following):
    """Return a graph with a state whose ends have these dimensions, those with names free."""

    def named(name, axes):
        dims = tuple(axis if isinstance(axis, int) else -1 for axis in axes)
        names = tuple("" if isinstance(axis, int) else axis for axis in axes)
        return TensorSpec(name=name, dtype=DATA_TYPES["FP32"], dims=dims, axes=names)

    inputs = (named("x", ("batch", 2)), named("h", given))
    return Signature(
        inputs=inputs, outputs=(named("y", ("batch", 2)), named("n", following)), axis_limits={}
    )


@pytest.mark.parametrize(
    ("given", "following", "axis"),
    [
        (("batch", 2, 2), ("batch", 2, 2), 0),
        ((2, "batch", 2), (2, "batch", 2), 1),
        ((2, 2, "batch"), ("a", "b", "c"), 2),
        (("a", "batch", "c"), ("d", "e", "f"), 1),
        (("a", "b", "c"), ("d", "batch", "f"), 1),
        (("", "", ""), ("", "", ""), 0),
        ((8, 2, 2), (8, 2, 2), 0),
        (("batch", "batch", 2), ("batch", 2, 2), 0),
    ],
)
def test_where_a_state_has_the_batch_is_what_both_ends_leave_open(given, following, axis):
    """Of several places the one with the batch's name is it, else the first."""
    layout = build_layout(config(states=(("h", "n", [2, 2]),)), stacked(given, following))
    (state,) = layout.states
    assert state.axis == axis
    assert state.of_rows(4, state.dims) == (2,) * axis + (4,) + (2,) * (2 - axis)
