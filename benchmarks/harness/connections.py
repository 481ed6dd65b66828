"""Load over plain HTTP/1.1: one socket per request in flight, one thread, epoll.

A closed loop sends the next request when one is answered, so many are in flight always. An open
loop sends when a request is due, whether or not earlier ones are answered: only it shows what a
queue does.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.harness.pool import Pool, Script
from benchmarks.harness.requests import connect, ended
from benchmarks.harness.tally import Tally

__all__ = ["ClosedLoop", "Loop", "OpenLoop"]

RECEIVE_BYTES = 1 << 16
SILENCE_S = 60.0


@dataclass(slots=True)
class _Flight:
    """One connection and the script on it.

    Attributes:
        at: which of the script's requests is in flight.
        started: when the current unit of work began, or was due.
    """

    sock: socket.socket
    position: int = 0
    script: Script = ()
    at: int = 0
    started: float = 0.0
    received: list[bytes] = field(default_factory=list)


class Loop:
    """Connections to one server, and what is sent on them.

    Args:
        address: `host:port` of the server's HTTP.
        pool: the scripts.
        offset: where in the pool to begin; systems that are compared begin at the same place.
    """

    def __init__(self, address: str, pool: Pool, offset: int) -> None:
        self._address = address
        self._pool = pool
        self._next = offset
        self._poll = select.epoll()
        self._flights: dict[int, _Flight] = {}
        self._idle: list[_Flight] = []
        self._sending = True
        self.tally = Tally(pool)
        self.moved_bytes = 0

    def run(self, seconds: float) -> None:
        """Send and collect for so long."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            self._wait(min(left, self._until_due()))

    def drain(self) -> None:
        """Let scripts in flight end, and close the connections: open ones hold a server.

        Raises:
            TimeoutError: nothing was answered for a minute.
        """
        self._sending = False
        while (left := len(self._flights) - len(self._idle)) > 0:
            if not self._wait(SILENCE_S):
                raise TimeoutError(f"{left} requests in flight, no answer for {SILENCE_S:.0f} s")
        for flight in self._flights.values():
            flight.sock.close()
        self._poll.close()

    def _until_due(self) -> float:
        return float("inf")

    def _answered(self, flight: _Flight) -> None:
        """A script has ended: what its connection does now."""
        raise NotImplementedError

    def _wait(self, seconds: float) -> bool:
        """Take what comes within so long; return whether anything came."""
        ready = self._poll.poll(seconds)
        for descriptor, _ in ready:
            self._receive(self._flights[descriptor])
        return bool(ready)

    def _open(self) -> _Flight:
        sock = connect(self._address)
        self._poll.register(sock, select.EPOLLIN)
        flight = self._flights[sock.fileno()] = _Flight(sock)
        return flight

    def _begin(self, flight: _Flight, due: float | None = None) -> None:
        """Send the first request of the pool's next script."""
        flight.position = self._next % len(self._pool.scripts)
        flight.script = self._pool.scripts[flight.position]
        flight.at = 0
        self._next += 1
        now = time.perf_counter()
        flight.started = now if due is None else due
        if due is not None:
            self.tally.late_s.append(now - due)
        flight.sock.sendall(flight.script[0])

    def _receive(self, flight: _Flight) -> None:
        received = flight.sock.recv(RECEIVE_BYTES)
        if not received:
            raise ConnectionError("the server closed a connection in the middle of a request")
        flight.received.append(received)
        answer = b"".join(flight.received)
        if not ended(answer):
            return
        flight.received.clear()
        now = time.perf_counter()
        self.moved_bytes += len(flight.script[flight.at]) + len(answer)
        flight.at += 1
        last = flight.at == len(flight.script)
        self.tally.add(flight.position, flight.started, now, answer, last=last)
        if last:
            self._answered(flight)
            return
        if not self._pool.whole:
            flight.started = now
        flight.sock.sendall(flight.script[flight.at])


class ClosedLoop(Loop):
    """Keeps `in_flight` scripts going."""

    def __init__(self, address: str, pool: Pool, offset: int, in_flight: int) -> None:
        super().__init__(address, pool, offset)
        for _ in range(in_flight):
            self._begin(self._open())

    def _answered(self, flight: _Flight) -> None:
        if self._sending:
            self._begin(flight)
        else:
            self._idle.append(flight)


class OpenLoop(Loop):
    """Begins a script at each of the given times, on a connection that is idle or a new one.

    Args:
        gaps: seconds between one and the next.
    """

    def __init__(self, address: str, pool: Pool, offset: int, gaps: Iterator[float]) -> None:
        super().__init__(address, pool, offset)
        self._gaps = gaps
        self._dues = deque([time.perf_counter() + next(gaps)])

    def _until_due(self) -> float:
        while (left := self._dues[0] - time.perf_counter()) <= 0:
            due = self._dues.popleft()
            self._dues.append(due + next(self._gaps))
            self._begin(self._idle.pop() if self._idle else self._open(), due)
        return left

    def _answered(self, flight: _Flight) -> None:
        self._idle.append(flight)
