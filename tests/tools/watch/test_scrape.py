"""A server's metrics, read over HTTP."""

import http.server
import socket
import threading

import pytest

from ge_backend.errors import ServerError
from ge_tools.watch.scrape import parse, scrape, whole_url

TEXT = """\
# HELP ge_requests_total Requests taken from the host.
# TYPE ge_requests_total counter
ge_requests_total{model="m",version="1"} 7
# TYPE nv_inference_count counter
nv_inference_count{model="m"} 9
# TYPE nv_inference_request_summary_us summary
nv_inference_request_summary_us{model="m",quantile="0.5"} 3232
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.5
"""


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.path == "/metrics":  # the host's metrics port answers other paths with nothing
            self.wfile.write(TEXT.encode())
        if self.path == "/page":
            self.wfile.write(b'{"name":"triton"}\n<html>x y z</html>')

    def log_message(self, *_):
        pass


@pytest.fixture
def url():
    with http.server.HTTPServer(("localhost", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://localhost:{server.server_port}/metrics"
        server.shutdown()
        thread.join()


def test_only_our_own_series_and_those_of_requests_are_read():
    """The host has hundreds of others."""
    reading = parse(TEXT, at_s=3.0)
    assert reading.values == {
        ("ge_requests_total", (("model", "m"), ("version", "1"))): 7.0,
        ("nv_inference_count_total", (("model", "m"),)): 9.0,
        ("nv_inference_request_summary_us", (("model", "m"), ("quantile", "0.5"))): 3232.0,
    }
    assert reading.at_s == 3.0


def test_what_is_no_number_is_told_of_nothing():
    """Devices of a model that is unloaded: the host's series outlive it."""
    text = 'ge_device_up{device="npu:0",model="m"} Nan\nge_buckets{model="m"} 2\n'
    assert parse(text, at_s=3.0).values == {("ge_buckets", (("model", "m"),)): 2.0}


def test_a_server_is_asked(url):
    """Over HTTP, as Prometheus does."""
    assert scrape(url).total("ge_requests_total", model="m") == 7


def test_no_proxy_of_the_environment_is_asked(url, monkeypatch):
    """It could not reach this machine."""
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert scrape(url).total("ge_requests_total", model="m") == 7


@pytest.mark.parametrize("end", ["", "/"])
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_host_and_its_port_are_enough(url, scheme, end):
    """As `ge-backend serve` prints those of gRPC."""
    short = scheme + url.removeprefix("http://").removesuffix("/metrics") + end
    assert whole_url(short) == url
    assert scrape(short).total("ge_requests_total", model="m") == 7


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:99999", "localhost:80O2", "http://::1:8002", "http://[::1", "a..b:8002"),
        f"{'a' * 64}:8002",
    ],
)
def test_an_address_that_is_none_is_refused(url):
    """Before anything is looked for there."""
    with pytest.raises(ServerError, match=r"no metrics at .*; expected .*--url names another"):
        whole_url(url)


def test_an_answer_of_nothing_is_refused(url):
    """A server that has served nothing yet says much of itself already."""
    with pytest.raises(ServerError, match=r"the answer is empty; expected .* --url names another"):
        scrape(url.replace("/metrics", "/v2"))


def test_another_page_is_refused(url):
    """Whatever else speaks HTTP there."""
    with pytest.raises(ServerError, match=r"no metrics at .*/page: .*--url names another"):
        scrape(url.replace("/metrics", "/page"))


def test_a_port_that_does_not_speak_http_is_refused():
    """As that of gRPC, which answers with the first frame of HTTP/2."""
    frame = b"\0\0\x06\x04\0\0\0\0\0\0\x03\x7f\xff\xff\xff"
    with socket.create_server(("localhost", 0)) as server:

        def answer():
            with server.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(frame)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ServerError, match=r"no metrics at .*metrics port") as caught:
            scrape(f"localhost:{server.getsockname()[1]}")
        thread.join()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("url", ["http://localhost:1/metrics", "nonsense"])
def test_nobody_there_is_one_error(url):
    """It says what was expected."""
    with pytest.raises(ServerError, match=rf"no metrics at (http://)?{url}.*metrics port"):
        scrape(url)
