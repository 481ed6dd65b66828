from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from demo.counters import Counters, read, wait_for

LABELS = 'model="m",version="1",device="cpu"'
PAGE = f"""\
# HELP ge_requests_total Requests taken from the host.
# TYPE ge_requests_total counter
ge_requests_total{{{LABELS}}} 10
ge_requests_total{{model="other",version="1",device="cpu"}} 99
# TYPE ge_batches_total counter
ge_batches_total{{{LABELS}}} 4
# TYPE ge_sub_batches_total counter
ge_sub_batches_total{{{LABELS},bucket="rows=1 sequence=16"}} 3
ge_sub_batches_total{{{LABELS},bucket="rows=4 sequence=32"}} 2
# TYPE ge_elements_real_total counter
ge_elements_real_total{{{LABELS}}} 100
# TYPE ge_elements_run_total counter
ge_elements_run_total{{{LABELS}}} 120
# TYPE ge_elements_longest_total counter
ge_elements_longest_total{{{LABELS}}} 180
# TYPE nv_inference_count counter
nv_inference_count{{model="m",version="1"}} 10
"""


def counters(**changes: object) -> Counters:
    values = {"requests": 0, "batches": 0, "buckets": {}, "real": 0, "run": 0, "longest": 0}
    return Counters(**(values | changes))


@pytest.fixture
def served() -> Iterator[tuple[str, list[str]]]:
    """A metrics page whose text a test can change, and its address."""
    text = [PAGE]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text[0].encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/metrics", text
    server.shutdown()
    server.server_close()
    thread.join()


def test_read_takes_one_models_counters():
    """Other models' series and the host's own metrics are left out."""
    assert read(PAGE, "m") == counters(
        requests=10,
        batches=4,
        buckets={"rows=1 sequence=16": 3, "rows=4 sequence=32": 2},
        real=100,
        run=120,
        longest=180,
    )


def test_read_adds_series_that_differ_in_other_labels():
    """A model on two devices has two series; both count."""
    more = PAGE + 'ge_requests_total{model="m",version="1",device="null"} 5\n'

    assert read(more, "m").requests == 15


def test_a_model_that_was_never_asked_counts_nothing():
    """What is not on the page is 0."""
    assert read("", "m") == counters()


def test_since_gives_what_was_counted_between():
    """Buckets that did not run in between are left out."""
    before = counters(requests=6, batches=3, buckets={"a": 3, "b": 2}, real=40, run=50, longest=60)
    after = counters(
        requests=10, batches=4, buckets={"a": 3, "b": 4, "c": 1}, real=100, run=120, longest=180
    )

    assert after.since(before) == counters(
        requests=4, batches=1, buckets={"b": 2, "c": 1}, real=60, run=70, longest=120
    )


def test_padding_saved_compares_padding_alone():
    """Of 80 padded elements 20 ran, so three quarters were saved; real elements do not count."""
    assert counters(real=100, run=120, longest=180).padding_saved == 0.75


def test_no_padding_means_nothing_was_saved():
    """Batches of equal lengths have nothing to save, and nothing to divide by."""
    assert counters(real=100, run=100, longest=100).padding_saved == 0.0


def test_wait_for_waits_until_the_page_has_caught_up(served):
    """Counters are published a moment after the replies."""
    url, text = served
    text[0] = ""
    timer = threading.Timer(0.1, lambda: text.__setitem__(0, PAGE))
    timer.start()

    assert wait_for(url, "m", requests=10).requests == 10
    timer.join()


def test_wait_for_gives_up_with_what_there_is(served):
    """A counter that never comes does not hang the demo."""
    url, _ = served

    assert wait_for(url, "m", requests=11, timeout_s=0.1).requests == 10
