import numpy as np
import pytest

from acl_simulator.arguments import parse
from acl_simulator.facts import Call


def read(letters, *arguments):
    return parse("rt.f", Call(letters, ("ret",)), arguments)


@pytest.mark.parametrize(
    ("letter", "given", "seen"),
    [
        ("k", -1, 2**64 - 1),
        ("k", 2**70, 0),
        ("k", True, 1),
        ("i", np.int64(-3), -3),
        ("I", np.int32(7), 7),
        ("I", 2**32 + 5, 5),
        ("s", "text", "text"),
    ],
)
def test_numbers_arrive_as_in_c(letter, given, seen):
    assert read(letter, given) == [seen]


@pytest.mark.parametrize(
    ("letter", "given", "error"),
    [
        ("i", 2**31, OverflowError),
        ("i", 1.0, TypeError),
        ("s", None, TypeError),
        ("s", b"bytes", TypeError),
        ("L", (1, 2), TypeError),
        ("D", [], TypeError),
        ("S", bytearray(b"x"), ValueError),
    ],
)
def test_wrong_types_are_errors_and_never_codes(letter, given, error):
    with pytest.raises(error):
        read(letter, given)


def test_what_is_optional_may_be_left_out():
    assert read("|s") == []
    assert read("|s", "a") == ["a"]
