"""Bodies and texts within the API's limits."""

import asyncio

import pytest
from starlette.requests import Request

from ge_openai.api_error import ApiError
from ge_openai.incoming import Incoming
from ge_openai.options import FrontOptions

INCOMING = Incoming(FrontOptions(url="", max_body_bytes=8, max_prompt_bytes=4))


def body(kind, *parts):
    """Return what is made of a body that comes in parts."""
    left = [{"type": "http.request", "body": part, "more_body": True} for part in parts]

    async def receive():
        return left.pop(0) if left else {"type": "http.request"}

    scope = {"type": "http", "headers": [(b"content-type", kind)]}
    return asyncio.run(INCOMING.body(Request(scope, receive)))


def test_a_body_is_json_and_not_too_long():
    """Whatever parts it comes in."""
    assert body(b"application/json; charset=utf-8", b"1234", b"5678") == b"12345678"
    for kind, parts, status in (
        (b"application/json", (b"12345678", b"9"), 413),
        (b"text/plain", (b"1",), 415),
    ):
        with pytest.raises(ApiError) as caught:
            body(kind, *parts)
        assert caught.value.status == status


@pytest.mark.parametrize(("text", "code"), [("\ud800", None), ("ééé", "string_above_max_length")])
def test_a_text_is_unicode_and_not_too_long(text, code):
    """Counted in bytes; the field is named."""
    INCOMING.check_texts(("éé", (1, 2)), "input")
    with pytest.raises(ApiError) as caught:
        INCOMING.check_texts(("a", text), "input")
    assert (caught.value.param, caught.value.code) == ("input", code)
