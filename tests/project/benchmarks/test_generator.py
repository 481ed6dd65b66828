"""The load generator against a small HTTP server in a thread."""

import http.server
import threading
import time

import numpy as np
import pytest
from benchmarks.harness.client import BenchmarkError, LoadProcess
from benchmarks.harness.connections import ClosedLoop
from benchmarks.harness.generator import Order, measure
from benchmarks.harness.pool import Pool, load_pools, save_pools
from benchmarks.harness.requests import http_request

from builders.http_answers import http_answer

ANSWER = np.array([1.0, 2.0], np.float32)


@pytest.fixture
def server():
    """A server that answers every request with `ANSWER` after 5 ms; `seen` has the bodies."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self):
            self.server.seen.append(self.rfile.read(int(self.headers["Content-Length"])))
            time.sleep(0.005)
            self.wfile.write(self.server.answer)

        def log_message(self, *_):
            """Say nothing."""

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 1024  # with the default of 5 the kernel drops connections in a burst

    with Server(("127.0.0.1", 0), Handler) as found:
        found.seen, found.answer = [], http_answer(ANSWER)
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        yield found
        found.shutdown()


def request(number):
    return http_request("m", {"x": np.array([[number]])})


def pool(**changes):
    scripts = tuple((request(number),) for number in range(4))
    return Pool(**{"scripts": scripts, "answers": {0: ANSWER}, "tolerance": 1e-3, **changes})


def order(server, **changes):
    given = {
        "pool": "p",
        "address": f"127.0.0.1:{server.server_port}",
        "in_flight": 3,
        "rate": 0.0,
        "offset": 0,
        "seed": 1,
        "settle_s": 0.05,
        "measure_s": 0.3,
        "roles": {},
    }
    return Order(**{**given, **changes})


def test_a_closed_loop_keeps_so_many_in_flight(server):
    """Requests per second times their latency are the requests in flight."""
    report = measure(order(server), pool())
    mean_s = np.mean(report.latencies_ms) / 1e3
    assert report.per_s * mean_s == pytest.approx(3, rel=0.3)
    assert report.checked > 0
    assert report.errors == []
    assert report.cpu_s["client"] > 0


def test_an_open_loop_sends_at_its_rate(server):
    """Whether or not answers have come; latencies count from when a request was due."""
    report = measure(order(server, in_flight=0, rate=200.0, measure_s=1.0), pool())
    assert 120 < len(report.latencies_ms) < 280
    assert min(report.latencies_ms) >= 5
    assert 0 < report.late_ms < 100


def test_an_open_loop_does_not_wait_for_answers(server):
    """With 5 ms a request and one connection there would be 200 a second at most."""
    report = measure(order(server, in_flight=0, rate=500.0, measure_s=0.5), pool())
    assert report.per_s > 250


def test_a_server_that_says_nothing_is_named(server, monkeypatch):
    """Rather than waited for without an end."""
    monkeypatch.setattr("benchmarks.harness.connections.SILENCE_S", 0.2)
    loop = ClosedLoop(f"127.0.0.1:{server.server_port}", pool(), 0, 2)
    loop.run(0.05)
    server.answer = b""
    loop.run(0.05)
    with pytest.raises(TimeoutError, match="2 requests in flight, no answer"):
        loop.drain()


def test_a_wrong_answer_is_an_error(server):
    """Its deviation is named."""
    report = measure(order(server), pool(answers={0: ANSWER + 1}))
    assert "script 0: off by 1.0e+00" in report.errors[0]


def test_an_answer_of_another_shape_is_an_error(server):
    """It cannot be compared."""
    report = measure(order(server), pool(answers={0: np.zeros(3, np.float32)}))
    assert "shape (2,), expected (3,)" in report.errors[0]


def test_a_failure_is_an_error_and_a_refusal_is_counted(server):
    """Full queues answer 503."""
    server.answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 5\r\n\r\nwrong"
    with pytest.raises(ValueError, match="too few"):
        measure(order(server), pool())
    server.answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(ValueError, match="too few"):
        measure(order(server), pool())


def test_a_script_is_sent_in_its_order_and_ends(server):
    """Steps of one sequence never overlap, and none is left half done."""
    scripts = tuple(tuple(request(10 * number + step) for step in range(3)) for number in range(50))
    measure(order(server, in_flight=2), pool(scripts=scripts, answers={}))
    numbers = [int(np.frombuffer(body[-8:], np.int64)[0]) for body in server.seen]
    whole = {number for number in range(50) if 10 * number in numbers}
    for number in whole:
        steps = [each for each in numbers if each // 10 == number]
        assert steps[:3] == [10 * number, 10 * number + 1, 10 * number + 2]
        assert len(steps) % 3 == 0


def test_a_whole_script_has_one_latency(server):
    """Calls that make one answer together count once, from the first to the last."""
    scripts = (tuple(request(step) for step in range(3)),)
    report = measure(order(server, in_flight=1), pool(scripts=scripts, whole=True))
    assert min(report.latencies_ms) >= 15


def test_pools_survive_their_file(tmp_path):
    """What was saved is loaded again."""
    save_pools({"a": pool(), "b": pool(whole=True)}, tmp_path / "pools")
    found = load_pools(tmp_path / "pools")
    assert found["a"].scripts == pool().scripts
    assert found["b"].whole
    assert np.array_equal(found["a"].answers[0], ANSWER)


def test_the_process_measures_and_refuses_wrong_answers(server):
    """An order goes to the process and a report comes back."""
    with LoadProcess({"p": pool(), "wrong": pool(answers={0: ANSWER + 1})}) as process:
        assert process.measure(order(server)).per_s > 0
        with pytest.raises(BenchmarkError, match="wrong: script 0"):
            process.measure(order(server, pool="wrong"))
