"""A closed loop over plain HTTP/1.1: one socket per request in flight, one thread, epoll."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.protocol import http_embedding, http_ended, http_request
from benchmarks.rivals.forward import Ids, Rows
from benchmarks.tally import Tally

__all__ = ["HttpLoop"]

OK = b"HTTP/1.1 200"
RECEIVE_BYTES = 1 << 16


@dataclass(slots=True)
class _Flight:
    """One request in flight."""

    sock: socket.socket
    position: int
    started: float
    answer: bytes = b""


class HttpLoop:
    """Keeps N requests in flight; answers are collected while `run` or `drain` runs.

    Args:
        address: `host:port` of the server's HTTP.
        rows: sequences by mix.
    """

    def __init__(self, address: str, rows: Mapping[str, Sequence[Ids]]) -> None:
        self._address = address
        self._rows = rows
        self._requests: dict[tuple[str, str], list[bytes]] = {}
        self._flights: dict[int, _Flight] = {}
        self._poll = select.epoll()
        self._current: list[bytes] = []
        self._positions: Iterator[int] = iter(())

    def start(self, model: str, mix: str, concurrency: int, positions: Iterator[int]) -> None:
        """Send the first `concurrency` requests."""
        if (model, mix) not in self._requests:
            rows = self._rows[mix]
            self._requests[model, mix] = [http_request(model, row) for row in rows]
        self._current = self._requests[model, mix]
        self._positions = positions
        host, _, port = self._address.rpartition(":")
        for _ in range(concurrency):
            sock = socket.create_connection((host, int(port)))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._poll.register(sock, select.EPOLLIN)
            flight = _Flight(sock, 0, 0.0)
            self._flights[sock.fileno()] = flight
            self._send(flight)

    def run(self, tally: Tally, seconds: float) -> None:
        """Collect answers and send a request for each, for so long."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            for descriptor, _ in self._poll.poll(left):
                flight = self._flights[descriptor]
                if self._receive(flight, tally):
                    self._send(flight)

    def drain(self, tally: Tally) -> None:
        """Collect what is still in flight, and close the connections: open ones hold a server."""
        while self._flights:
            for descriptor, _ in self._poll.poll():
                if self._receive(self._flights[descriptor], tally):
                    self._poll.unregister(descriptor)
                    self._flights.pop(descriptor).sock.close()

    @staticmethod
    def embedding(answer: bytes) -> Rows:
        """Return what an answer holds."""
        return http_embedding(answer)

    def _send(self, flight: _Flight) -> None:
        flight.position = next(self._positions)
        flight.started = time.perf_counter()
        flight.sock.sendall(self._current[flight.position])

    @staticmethod
    def _receive(flight: _Flight, tally: Tally) -> bool:
        """Take what has arrived; return whether that was the whole answer."""
        received = flight.sock.recv(RECEIVE_BYTES)
        if not received:
            raise ConnectionError("the server closed a connection in the middle of a request")
        answer = flight.answer + received
        if not http_ended(answer):
            flight.answer = answer
            return False
        flight.answer = b""
        tally.add(flight.position, flight.started, answer, failed=not answer.startswith(OK))
        return True
