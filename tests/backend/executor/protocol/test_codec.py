"""A service's own dataclasses survive the way; nothing else is read."""

import json
import types
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol.codec import MAX_NUMBER, Codec, Rule
from ge_backend.model.config.sequence_batching import State
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A dataclass within a message."""

    name: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A message."""

    id: int
    parts: tuple[Part, ...]
    weights: dict[str, float]
    best: Part | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Another message."""

    id: int


CODEC = Codec((Ask, Stop))
NUMBERS = st.integers(-MAX_NUMBER, MAX_NUMBER)
PARTS = st.builds(Part, name=st.text(), sizes=st.lists(NUMBERS).map(tuple))
ASKS = st.builds(
    Ask,
    id=NUMBERS,
    parts=st.lists(PARTS, max_size=3).map(tuple),
    weights=st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=3),
    best=st.none() | PARTS,
)


@given(ASKS | st.builds(Stop, id=NUMBERS))
def test_what_is_decoded_equals_what_was_encoded(message):
    """Whatever the fields may hold."""
    assert CODEC.decode(CODEC.encode(message)) == message


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"null",
        b'{"type":"Part","name":"x","sizes":[]}',
        b'{"type":"Stop"}',
        b'{"type":"Stop","id":"1"}',
        b'{"type":"Stop","id":true}',
        b'{"type":"Stop","id":1,"more":2}',
        b'{"type":"Ask","id":1,"parts":[{"name":1,"sizes":[]}],"weights":{}}',
    ],
)
def test_what_is_no_message_is_refused(block):
    """Unknown names, missing or further fields and wrong types."""
    with pytest.raises(ProtocolError, match="cannot be read"):
        CODEC.decode(block)


def test_a_number_that_two_of_do_not_add_up_in_64_bits_is_refused():
    """Fields without a rule have bounds too."""
    with pytest.raises(ProtocolError, match="expected"):
        CODEC.decode(b'{"type":"Stop","id":9223372036854775808}')


def test_a_rule_bounds_its_field_alone():
    """Rules are found by class and name."""
    codec = Codec((Ask, Stop), {(Stop, "id"): Rule(most=3)})
    assert codec.decode(b'{"type":"Stop","id":3}') == Stop(id=3)
    with pytest.raises(ProtocolError, match="expected 0 to 3, got 4"):
        codec.decode(b'{"type":"Stop","id":4}')
    assert codec.decode(b'{"type":"Ask","id":4,"parts":[],"weights":{}}').id == 4


SPECS = st.lists(st.tuples(st.integers(-1, 9), st.text(max_size=3)), max_size=4).flatmap(
    lambda dims: st.builds(
        TensorSpec,
        name=st.text(max_size=5),
        dtype=st.sampled_from(list(DATA_TYPES.values())),
        dims=st.just(tuple(size for size, _ in dims)),
        axes=st.just(tuple(axis for _, axis in dims)),
        optional=st.booleans(),
        fill=st.floats(-9, 9),
    )
)
SIGNATURES = st.builds(
    Signature,
    inputs=st.lists(SPECS, max_size=3).map(tuple),
    outputs=st.lists(SPECS, max_size=3).map(tuple),
    axis_limits=st.dictionaries(st.text(max_size=3), st.integers(1, 999), max_size=2),
    lengths=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)
DESCRIPTIONS = Codec((Signature, State))


@given(SIGNATURES)
def test_a_signature_survives_the_way(signature):
    """A signature made bytes and back is equal to what it was."""
    assert DESCRIPTIONS.decode(DESCRIPTIONS.encode(signature)) == signature


def test_a_state_survives_the_way():
    """A state made bytes and back is equal to what it was."""
    state = State(
        input="h",
        output="h_next",
        dtype=DATA_TYPES["BF16"],
        dims=(-1, 4),
        initial_dims=(0, 4),
        initial_file="/models/m/initial_state/h",
    )
    assert DESCRIPTIONS.decode(DESCRIPTIONS.encode(state)) == state


def test_a_mapping_that_cannot_be_changed_survives_as_well():
    """Whatever kind of mapping holds them, the entries arrive."""
    limits = types.MappingProxyType({"length": 512})
    signature = Signature(inputs=(), outputs=(), axis_limits=limits)
    assert DESCRIPTIONS.decode(DESCRIPTIONS.encode(signature)).axis_limits == limits


@pytest.mark.parametrize("dtype", ["FP31", 7, None, ["FP32"]])
def test_an_unknown_type_is_refused(dtype):
    """A data type travels as its name, of which there is a table."""
    whole = Signature(
        inputs=(TensorSpec(name="x", dtype=DATA_TYPES["FP32"], dims=(), axes=()),),
        outputs=(),
        axis_limits={},
    )
    packed = json.loads(DESCRIPTIONS.encode(whole))
    packed["inputs"][0]["dtype"] = dtype
    with pytest.raises(ProtocolError):
        DESCRIPTIONS.decode(json.dumps(packed).encode())


def test_a_rule_without_bounds_takes_everything_that_fits():
    """The usual rule lets names, sizes and moments pass."""
    rule = Rule()
    rule.check_number(0)
    rule.check_number(MAX_NUMBER)
    rule.check_numbers((1,) * 100)
    rule.check_text("Grüße")
    rule.check_real(float("inf"))


@pytest.mark.parametrize("value", [-1, 4])
def test_numbers_out_of_bounds_are_named(value):
    """The error says what was expected and what came."""
    with pytest.raises(ValueError, match=f"expected 0 to 3, got {value}"):
        Rule(most=3).check_number(value)
