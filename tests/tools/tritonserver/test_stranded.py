"""A server that stops and waits for answers of stubs that are gone is told from any other."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ge_tools.tritonserver import stranded as module
from ge_tools.tritonserver.stranded import Stranded

LINE = 'nv_inference_request_success{{model="{}",version="1"}} 0\n'
OTHERS = """# HELP nv_inference_request_success Number of successful inference requests
ge_model_heals{model="elsewhere"} 1
"""


class Rig:
    """A server's metrics, its stubs and a clock."""

    def __init__(self, monkeypatch):
        self.held, self.living, self.now = ("m",), [], 100.0
        monkeypatch.setattr(module, "stubs_of", lambda server: self.living)
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        self.http = HTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/metrics"
        self.stranded = Stranded(7, self.url, lambda: {"m", "n"})

    def _handler(rig):  # noqa: N805 - the class within has a self of its own
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                page = OTHERS + "".join(LINE.format(name) for name in rig.held)
                self.wfile.write(page.encode())

            def log_message(self, *_):
                pass

        return Handler

    def after(self, seconds):
        self.now += seconds
        return self.stranded.models()


@pytest.fixture
def rig(monkeypatch):
    rig = Rig(monkeypatch)
    yield rig
    rig.http.shutdown()
    rig.http.server_close()


def test_a_model_that_is_held_though_its_stubs_are_gone_is_named(rig):
    """Once it has been so for a while: unloading takes a moment after the last stub's end."""
    assert [rig.after(1.0) for _ in range(4)] == [[], [], ["m"], ["m"]]


def test_a_stub_that_lives_may_still_answer(rig):
    """And what was seen before it counts no more."""
    rig.after(1.0)
    rig.living = ["stub"]
    assert rig.after(5.0) == []
    rig.living = []
    assert [rig.after(1.0) for _ in range(3)] == [[], [], ["m"]]


def test_a_model_that_has_no_stubs_may_still_answer(rig):
    """As one of a C++ backend, which nobody sees at work."""
    rig.held = ("m", "cpp")
    assert [rig.after(1.0) for _ in range(4)] == [[]] * 4


def test_a_server_that_holds_no_model_waits_for_something_else(rig):
    """For a connection, say, which is the host's business."""
    rig.held = ()
    assert [rig.after(1.0) for _ in range(4)] == [[]] * 4


def test_without_metrics_nothing_is_known(rig):
    """Where the server has none, and where they do not answer."""
    deaf = Stranded(7, "http://127.0.0.1:9/metrics", lambda: {"m"})
    none = Stranded(7, "", lambda: {"m"})
    for _ in range(4):
        rig.now += 1.0
        assert deaf.models() == none.models() == []
