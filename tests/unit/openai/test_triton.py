"""The connection to a server that is made up; tests/server/test_openai.py has the real one."""

import asyncio
import concurrent.futures
import time

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from ge_backend.openai import triton
from ge_backend.openai.triton import TritonConnection

ANYWHERE = "127.0.0.1:0"


class Ready(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers that it is ready, so many seconds later."""

    def __init__(self, after_s=0.0):
        self.after_s = after_s

    def ServerReady(self, request, context):  # noqa: N802 - its name in the protocol
        time.sleep(self.after_s)
        return service_pb2.ServerReadyResponse(ready=True)


def started(servicer, address=ANYWHERE):
    """Return a gRPC server that runs, and its port."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(address)
    server.start()
    return server, port


@pytest.fixture
def proxied(monkeypatch):
    """An environment whose proxy for everything cannot be reached."""
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")


def test_no_proxy_stands_between(proxied):
    """The server is the operator's own, most often on this machine."""
    server, port = started(Ready())

    async def ask():
        connection = TritonConnection(f"127.0.0.1:{port}")
        try:
            return await connection.ready()
        finally:
            await connection.close()

    assert asyncio.run(ask())
    server.stop(0).wait()


def test_a_server_that_is_back_is_seen_soon():
    """However long it was away: gRPC alone would wait longer each time, up to two minutes."""
    server, port = started(Ready())
    address = f"127.0.0.1:{port}"

    async def ask():
        connection = TritonConnection(address)
        try:
            assert await connection.ready()
            server.stop(0).wait()
            away = time.monotonic() + 6  # by itself gRPC tries after 1, 1.6, 2.6 and 4.1 s
            while time.monotonic() < away:
                assert not await connection.ready()
                await asyncio.sleep(0.2)
            again, _ = started(Ready(), address)
            back = time.monotonic()
            while not await connection.ready():
                pass
            took = time.monotonic() - back
            again.stop(0).wait()
            return took
        finally:
            await connection.close()

    assert asyncio.run(ask()) < 2


def test_a_server_that_stands_still_is_not_ready(monkeypatch):
    """Who asks for the health gets an answer all the same."""
    monkeypatch.setattr(triton, "READY_TIMEOUT_S", 0.2)
    server, port = started(Ready(after_s=2))

    async def ask():
        connection = TritonConnection(f"127.0.0.1:{port}")
        try:
            return await asyncio.wait_for(connection.ready(), 1.5)
        finally:
            await connection.close()

    assert not asyncio.run(ask())
    server.stop(0).wait()
