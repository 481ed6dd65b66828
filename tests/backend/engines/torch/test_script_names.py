"""Names of a TorchScript model's tensors, by the rules of Triton's PyTorch backend."""

import pytest

from ge_backend.engines.torch.script_names import input_places, output_places
from ge_backend.errors import ConfigError
from ge_backend.model.config.declared import Declared
from ge_backend.tensors import DATA_TYPES, TensorSpec

ARGUMENTS = ("a", "b", "c")


def specs(text):
    return tuple(
        TensorSpec(name=name, dtype=DATA_TYPES["FP32"], dims=(-1,), axes=("",))
        for name in text.split()
    )


def declared(**parts):
    return Declared(**{part: specs(text) for part, text in parts.items()})


def inputs(arguments=ARGUMENTS, **parts):
    return input_places(declared(**parts), arguments, "m.pt")


@pytest.mark.parametrize(
    ("names", "places"),
    [
        ("a b c", [0, 1, 2]),
        ("c a b", [2, 0, 1]),
        ("X__0 X__1 X__2", [0, 1, 2]),
        ("X__2 Y__0 __1", [2, 0, 1]),
        ("x y z", [0, 1, 2]),
        ("c y a", [0, 1, 2]),
        ("a X__0 b", [0, 1, 2]),
        ("X__1 y X__0", [0, 1, 2]),
        ("X__1 X__a X__0", [0, 1, 2]),
        ("X__1__0 X__2 X__0", [0, 1, 2]),
    ],
    ids=[
        "arguments",
        "arguments in another order",
        "indexes",
        "indexes in another order",
        "neither: as listed",
        "one is no argument: as listed",
        "arguments and an index: as listed",
        "indexes and another: as listed",
        "no number: as listed",
        "a second index: as listed",
    ],
)
def test_inputs_follow_one_rule_together(names, places):
    """All are arguments, or all have an index, or their order counts."""
    assert inputs(inputs=names) == dict(zip(names.split(), places, strict=True))


@pytest.mark.parametrize(
    ("parts", "places"),
    [
        ({"inputs": "a", "controls": "START__2", "described": "b"}, {"START__2": 2, "b": 1}),
        ({"inputs": "X__0", "states": "H__1", "controls": "c"}, {"H__1": 1, "c": 2}),
        ({"inputs": "X__0", "described": "N__2 S__1"}, {"N__2": 2, "S__1": 1}),
        ({"inputs": "x", "described": "n s"}, {"n": 1, "s": 2}),
        ({"inputs": "x y", "controls": "START__2"}, {"START__2": 2}),
    ],
)
def test_what_comes_with_sequences_and_batches_has_a_place(parts, places):
    """By argument or index; targets of batch_input follow inputs that are only listed."""
    found = inputs(**parts)
    assert {name: found[name] for name in places} == places


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"inputs": "X__0", "controls": "START"}, "'START' does not follow the <name>__<index>"),
        ({"inputs": "X__0", "states": "H_1"}, "'H_1' does not follow the <name>__<index>"),
        ({"inputs": "x", "states": "H__1"}, "with state but not all inputs and outputs follow"),
        ({"inputs": "X__0 X__3"}, "'X__3' refers to argument 3, counted from 0; forward takes 3"),
        ({"inputs": "X__1", "controls": "START__1"}, "'X__1' and 'START__1' are both .* 'b'"),
    ],
)
def test_names_that_fit_nothing_are_refused(parts, said):
    """Each says which name it is."""
    with pytest.raises(ConfigError, match=said):
        inputs(**parts)


@pytest.mark.parametrize(
    ("parts", "places"),
    [
        ({"outputs": "Y__1 Y__0"}, {"Y__1": 1, "Y__0": 0}),
        ({"outputs": "Y__1 z"}, {"Y__1": 0, "z": 1}),
        ({"outputs": "a b"}, {"a": 0, "b": 1}),
        ({"outputs": "Y__0", "next_states": "N__1"}, {"Y__0": 0, "N__1": 1}),
        ({"outputs": "Y__0 N__1", "next_states": "N__1"}, {"Y__0": 0, "N__1": 1}),
    ],
)
def test_outputs_have_an_index_or_their_order_counts(parts, places):
    """A state that clients get as well is one result."""
    assert output_places(declared(**parts), "m.pt") == places


def test_outputs_beside_states_need_an_index():
    """Which result is the state would be a guess."""
    with pytest.raises(ConfigError, match="name the outputs so"):
        output_places(declared(outputs="y", states="H__1", next_states="N__1"), "m.pt")
    with pytest.raises(ConfigError, match="output 'next' does not follow"):
        output_places(declared(outputs="Y__0", states="H__1", next_states="next"), "m.pt")
