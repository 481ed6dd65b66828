"""The open loop against a gRPC server that refuses every other request."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from benchmarks.open_loop import offer
from benchmarks.protocol import GRPC_METHOD

ROWS = [np.arange(length) for length in (3, 5)]


class Every(grpc.GenericRpcHandler):
    """Answers a short row, and ends the call of a long one with a code."""

    def __init__(self, code):
        self._code = code
        self.calls = 0

    def service(self, call):
        assert call.method == GRPC_METHOD
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, request, context):
        self.calls += 1
        if len(request) > len_of_short():
            context.abort(self._code, "full")
        return b"short"


def len_of_short():
    from benchmarks.protocol import grpc_request

    return len(grpc_request("m", ROWS[0]))


@pytest.fixture
def served():
    """Return a function that starts a server and gives its handler and address."""
    servers = []

    def start(code):
        server = grpc.server(ThreadPoolExecutor(1))
        handler = Every(code)
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return handler, f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None).wait()


def test_refused_requests_are_counted_and_have_no_latency(served):
    """Each request is sent once, whatever becomes of the ones before."""
    handler, address = served(grpc.StatusCode.UNAVAILABLE)
    found = offer(address, "m", ROWS, 1000, 0.1, seed=1)
    assert handler.calls == len(found.latencies_ms) + found.refused > 10
    assert found.refused == handler.calls // 2
    assert min(found.latencies_ms) > 0
    assert list(found.answers) == [(0, b"short")] * len(found.latencies_ms)
    assert found.wall_s > 0


def test_any_other_failure_ends_the_benchmark(served):
    """Its figures would mean nothing."""
    _, address = served(grpc.StatusCode.INTERNAL)
    with pytest.raises(grpc.aio.AioRpcError):
        offer(address, "m", ROWS, 1000, 0.1, seed=1)
