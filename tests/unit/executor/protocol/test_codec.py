"""A service's own dataclasses survive the way; nothing else is read."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol.codec import Codec


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
PARTS = st.builds(Part, name=st.text(), sizes=st.lists(st.integers()).map(tuple))
ASKS = st.builds(
    Ask,
    id=st.integers(),
    parts=st.lists(PARTS, max_size=3).map(tuple),
    weights=st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=3),
)


@given(ASKS | st.builds(Stop, id=st.integers()))
def test_what_is_decoded_equals_what_was_encoded(message):
    """Whatever the fields hold."""
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
