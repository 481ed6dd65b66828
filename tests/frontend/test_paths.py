"""Paths that are none."""

import asyncio
import json

import pytest

from ge_openai.app import make_app
from ge_openai.options import FrontOptions


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/responses", "/v1/chat/completions"),
        ("/v1/responses/resp_1/cancel", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/completions", "/v1/completions"),
        ("/v1/v1/rerank/", "/v1/rerank"),
        ("/v1/images", None),
    ],
)
def test_a_wrong_path_is_told_the_one_that_is_meant(path, meant):
    """The Responses API, which is not served here, and base URLs with /v1 too few or too many."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    asyncio.run(make_app(FrontOptions(url=""))(scope, None, send))
    assert sent[0]["status"] == 404
    said = json.loads(sent[1]["body"])["error"]["message"]
    assert said == f"POST {path}: Not Found" + (f"; this server has {meant}" if meant else "")
