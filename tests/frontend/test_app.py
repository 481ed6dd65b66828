"""Endpoints in front of a server that is made up; tests/server/test_openai.py has the real one."""

import asyncio
import http.server
import json
import socket
import threading
from types import SimpleNamespace

import pytest
from starlette.requests import Request

from builders.front import Server, post
from ge_openai import app
from ge_openai.api_error import ApiError
from ge_openai.app import Endpoints
from ge_openai.models import ServedModel
from ge_openai.options import FrontOptions
from ge_openai.text_call import Piece
from ge_openai.triton import OtherDescriptionError


def test_a_wrong_method_is_told_those_that_are_right():
    """As HTTP wants it of a 405 (RFC 9110, 15.5.6)."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/v1/completions", "headers": []}
    asyncio.run(app.make_app(FrontOptions(url=""))(scope, None, send))
    assert sent[0]["status"] == 405
    assert dict(sent[0]["headers"])[b"allow"] == b"POST"


def test_a_client_without_a_key_is_told_how_to_bring_one():
    """As HTTP wants it of a 401 (RFC 9110, 15.5.2), and of no other error."""
    guarded = Endpoints(FrontOptions(url="", keys=("k",))).guarded
    request = Request({"type": "http", "headers": []})

    async def refuse(_):
        raise ApiError("no", status=400)

    answer = asyncio.run(guarded(refuse)(request))
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    request = Request({"type": "http", "headers": [(b"authorization", b"Bearer k")]})
    answer = asyncio.run(guarded(refuse)(request))
    assert (answer.status_code, answer.headers.get("www-authenticate")) == (400, None)


def test_metrics_come_by_no_proxy(monkeypatch):
    """They are the server's, most often on this machine."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"nv_x 1")

        def log_message(self, *_):
            pass

    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        options = FrontOptions(url="", metrics=f"http://127.0.0.1:{server.server_port}/metrics")
        answer = asyncio.run(Endpoints(options).metrics(None))
        server.shutdown()
        thread.join()
    assert (answer.status_code, answer.body) == (200, b"nv_x 1")


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\0\0\x18\4\0\0\0\0\0\r\n",  # the port is gRPC's
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnv_x",  # the server ended
    ],
)
def test_metrics_that_do_not_come_are_not_our_error(said):
    """Whatever is said in their place."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            client, _ = listener.accept()
            with client:
                client.recv(1024)
                client.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        told = refused(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics")
        thread.join()
    assert told.status == 502


@pytest.mark.parametrize("url", ["metrics", "http://[::1/metrics", "http://localhost:1/ metrics"])
def test_metrics_of_what_is_no_url_are_not_our_error(url):
    """As of one where nobody listens."""
    assert refused(url).status == 502


def refused(url):
    with pytest.raises(ApiError, match="metrics cannot be had") as told:
        asyncio.run(Endpoints(FrontOptions(url="", metrics=url)).metrics(None))
    return told.value


def test_a_forced_tool_whose_name_is_no_unicode_is_refused():
    """The answer repeats the name, and half of a pair of surrogates cannot be sent."""
    tool = {"type": "function", "function": {"name": "\ud800"}}
    body = {"messages": [{"role": "user", "content": "a"}], "tools": [tool], "tool_choice": tool}
    status, answer = post(Server(), body, "chat")
    assert (status, answer["error"]["param"]) == (400, "tool_choice")


def test_an_adapter_is_not_asked_for_by_two_names():
    """Neither of them is ignored, in a request that has two."""
    body = {"model": "m:pirate", "lora_name": "ninja", "prompt": "a"}
    status, answer = post(Server(), body, "completions")
    assert (status, answer["error"]["param"]) == (400, "lora_name")


class Reloading(Server):
    """Has one model, `m`, which is loaded anew."""

    async def model(self, name, ability):
        raise ApiError("it is loaded anew", status=503 if name == "m" else 404)

    async def models(self):
        return []


@pytest.mark.parametrize(
    ("name", "status"), [("m", 503), ("m:pirate", 503), ("reader:pirate", 404), ("reader", 404)]
)
def test_an_adapter_or_a_model_that_is_not_ready_is_not_unknown(monkeypatch, name, status):
    """The client is to ask again."""
    answered, _ = post(Reloading(), {"model": name, "prompt": "a"}, "completions")
    assert answered == status
    monkeypatch.setattr(app, "TritonConnection", lambda url: Reloading())

    async def described():
        endpoints = Endpoints(FrontOptions(url=""))
        async with endpoints.lifespan(None):
            await endpoints.one_model(SimpleNamespace(path_params={"name": name}))

    with pytest.raises(ApiError) as told:
        asyncio.run(described())
    assert told.value.status == status


class LoadedAnew(Server):
    """Has a language model that says something else whenever a prompt goes by what it said."""

    def __init__(self, times):
        super().__init__()
        self.times, self.said, self.looked = times, 0, 0

    async def model(self, name, ability):
        self.looked += 1
        return ServedModel(name=name, ability=ability, own=True)

    async def description(self, model):
        files = {"chat_template.jinja": f"{self.said}{{{{ messages[0].content }}}}"}
        return json.dumps(
            {"id": str(self.said), "files": files, "added_tokens": [], "adapters": []}
        )

    async def write(self, call):
        assert call.described == str(self.said)
        if self.said < self.times:
            self.said += 1
            raise OtherDescriptionError(call.model)
        yield [Piece(text=call.prompt, finish="stop")]


@pytest.mark.parametrize(("times", "status"), [(0, 200), (1, 200), (2, 503)])
def test_a_chat_is_tried_again_where_its_model_was_loaded_anew(times, status):
    """Once, as what it is by now: a model that is loaded anew all the time is not ready."""
    messages = [{"role": "user", "content": "hi"}]
    server = LoadedAnew(times)
    answered, answer = post(server, {"messages": messages}, "chat")
    assert (answered, server.looked) == (status, 1 + (times > 0))
    if status == 200:
        assert answer["choices"][0]["message"]["content"] == f"{times}hi"
