"""Fields of a body."""

import pytest

from ge_openai.api_error import ApiError
from ge_openai.fields import Fields


@pytest.mark.parametrize("block", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 100_000])
def test_a_body_is_a_json_object(block):
    """Anything else is refused, however deep."""
    with pytest.raises(ApiError, match="body"):
        Fields(block)


def test_fields_are_taken_once_and_null_is_absent():
    """What is left in the end is unknown, by its name."""
    fields = Fields(b'{"model": "m", "n": 2, "stream": true, "user": null, "x": 1}')
    assert (fields.text("model"), fields.whole("n", 1, 3), fields.flag("stream")) == ("m", 2, True)
    assert (fields.take("user"), fields.whole("n", 1, 3), fields.flag("stream")) == (
        None,
        None,
        False,
    )
    with pytest.raises(ApiError, match="x is not known") as caught:
        fields.end()
    assert caught.value.param == "x"
    assert fields.take_all(("x", "y")) == {"x": 1}
    fields.end()


@pytest.mark.parametrize("value", ["0", "4", "true", '"2"', "1.5", "[]"])
def test_a_whole_number_has_its_range(value):
    """Booleans and texts are none."""
    with pytest.raises(ApiError, match="n has to be a whole number from 1 to 3"):
        Fields(b'{"n": %s}' % value.encode()).whole("n", 1, 3)


def test_other_types_are_refused():
    """A text is not empty, a switch is no number."""
    for given in (b"{}", b'{"model": ""}', b'{"model": 1}'):
        with pytest.raises(ApiError, match="model has to be a text"):
            Fields(given).text("model")
    with pytest.raises(ApiError, match="true or false"):
        Fields(b'{"stream": 1}').flag("stream")


def test_a_field_may_be_there_with_some_values_only():
    """The reason is told for others."""
    Fields(b'{"echo": false}').only("echo", False, why="no")
    Fields(b"{}").only("echo", False, why="no")
    with pytest.raises(ApiError, match="echo is not supported: no"):
        Fields(b'{"echo": true}').only("echo", False, why="no")
