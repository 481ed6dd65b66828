"""API keys."""

import logging

import pytest

from ge_openai.access import check_key
from ge_openai.api_error import ApiError

KEYS = ("one", "schlüssel")


@pytest.mark.parametrize("header", ["Bearer one", "bearer schlüssel", "Bearer  one "])
def test_any_of_the_keys_will_do(header):
    """Whatever letters it has."""
    check_key(header, KEYS)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_key_may_come_in_either_encoding(encoding):
    """UTF-8 from curl, Latin-1 from requests; ASGI servers read headers as Latin-1."""
    check_key("Bearer schlüssel".encode(encoding).decode("latin-1"), KEYS)


@pytest.mark.parametrize("header", ["", "one", "Bearer", "Bearer on", "Bearer onee", "Basic one"])
def test_nothing_else_will(header):
    """With 401, and how to send one."""
    with pytest.raises(ApiError, match="Authorization: Bearer KEY") as caught:
        check_key(header, KEYS)
    assert caught.value.status == 401


def test_keys_are_not_told(caplog):
    """Neither the one that was sent nor those that would do, to the client or to the log."""
    with caplog.at_level(logging.DEBUG), pytest.raises(ApiError) as caught:
        check_key("Bearer my-secret", ("their-secret",))
    told = f"{caught.value}{vars(caught.value)}{caplog.text}"
    assert "secret" not in told


def test_without_keys_everybody_may_ask():
    """Also those who send one."""
    check_key("", ())
    check_key("Bearer x", ())
