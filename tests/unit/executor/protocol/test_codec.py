"""A service's own dataclasses survive the way; nothing else is read."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol.codec import Codec
from ge_backend.executor.protocol.rules import MOST, Rule


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Another message."""

    id: int


CODEC = Codec((Ask, Stop))
NUMBERS = st.integers(-MOST, MOST)
PARTS = st.builds(Part, name=st.text(), sizes=st.lists(NUMBERS).map(tuple))
ASKS = st.builds(
    Ask,
    id=NUMBERS,
    parts=st.lists(PARTS, max_size=3).map(tuple),
    weights=st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=3),
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
