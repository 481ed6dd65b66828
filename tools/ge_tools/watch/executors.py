"""The executors of a running server on this machine, and what they ran meanwhile.

An executor is found as a process, or inside a stub, whose owner, the server, listens at the port of
the metrics. It is only asked what it keeps anyway (`executor/server/timeline.py`), over its own
socket, where it answers its own user alone.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ge_backend.errors import ExecutorLost, GeError
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.process.host_processes import processes, words_of
from ge_backend.executor.process.inline_address import InlineAddress
from ge_backend.executor.protocol.messages import History, HistoryRequest, PastRun
from ge_tools.tritonserver.addresses import addresses_here

__all__ = ["DeviceRuns", "ExecutorProcess", "RunWatch", "find_executors"]

PROC = Path("/proc")
MODULE = "ge_backend.executor.process.main"
# Source: linux/include/net/tcp_states.h: TCP_LISTEN is 10, in /proc/net/tcp as two hex digits.
LISTENING = "0A"
NEWEST = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorProcess:
    """A running executor, as its command line or its address says; a stub may have several.

    Attributes:
        pid: of its process.
        device: what it has opened.
        owner_pid: the server's.
        socket: where it can be asked.
    """

    pid: int
    device: str
    owner_pid: int
    socket: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRuns:
    """What one executor ran; `missed` runs were forgotten before they were asked for."""

    device: str
    pid: int
    runs: tuple[PastRun, ...]
    missed: int


def find_executors(url: str) -> list[ExecutorProcess]:
    """Return the executors of the server whose metrics are at `url`, by device.

    None for a server on another machine or in another container: its processes are not seen here.
    """
    parts = urlsplit(url)
    if not parts.hostname or not parts.port or not addresses_here(parts.hostname):
        return []
    sockets = set(_listening(parts.port))
    owned = [found for found in _running() if sockets & _sockets_of(found.owner_pid)]
    return sorted(owned, key=lambda found: found.device)


@dataclass(slots=True)
class _Watched:
    connection: ExecutorConnection
    pid: int
    device: str
    after: int
    missed: int = 0
    lost: bool = False
    runs: list[PastRun] = field(default_factory=list)


class RunWatch:
    """Collects what the executors of a server run, from now on; executors that start later too.

    Attributes:
        note: why an executor could not be asked; "" if none refused.
    """

    def __init__(self, url: str) -> None:
        self.note = ""
        self._url = url
        self._watched: dict[str, _Watched] = {}  # by socket
        for found in find_executors(url):
            self._open(found, from_now=True)

    def look(self) -> int:
        """Fetch what has ended since the last look; return how many runs are known."""
        for found in find_executors(self._url):
            if found.socket not in self._watched:
                self._open(found, from_now=False)
        for watched in self._watched.values():
            try:
                _fetch(watched)
            except ExecutorLost:
                watched.lost = True  # what it ran before is known; its successor is found next time
        return sum(len(watched.runs) for watched in self._watched.values())

    def close(self) -> list[DeviceRuns]:
        """Leave the executors; return what each of them ran."""
        for watched in self._watched.values():
            watched.connection.close()
        return [
            DeviceRuns(
                device=watched.device,
                pid=watched.pid,
                runs=tuple(watched.runs),
                missed=watched.missed,
            )
            for watched in self._watched.values()
        ]

    def _open(self, found: ExecutorProcess, *, from_now: bool) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(found.socket)
            watched = _Watched(
                ExecutorConnection(sock), found.pid, found.device, NEWEST if from_now else 0
            )
            if from_now:
                watched.after = watched.connection.ask(_history_request(watched), History).last
        except (OSError, GeError) as error:
            sock.close()
            self.note = f"the executor of {found.device} cannot be asked: {error}"
            return
        self._watched[found.socket] = watched


def _fetch(watched: _Watched) -> None:
    while not watched.lost:
        history = watched.connection.ask(_history_request(watched), History)
        watched.missed += history.missed
        watched.runs += history.runs
        if not history.runs:
            return
        watched.after = history.runs[-1].number


def _history_request(watched: _Watched) -> HistoryRequest:
    return HistoryRequest(id=watched.connection.next_id(), after=watched.after)


def _running() -> Iterator[ExecutorProcess]:
    """Yield the executors that run on this machine, of any server and user."""
    for path in processes():
        arguments = words_of(path)
        named = dict(a[2:].split("=", 1) for a in arguments if a.startswith("--") and "=" in a)
        # Others, such as a grep for executors, have the module among their words.
        known = {"device", "owner", "socket"} <= named.keys() and named["owner"].isdecimal()
        if MODULE in arguments and known:
            yield ExecutorProcess(
                pid=int(path.name),
                device=named["device"],
                owner_pid=int(named["owner"]),
                socket=named["socket"],
            )
    for inside in InlineAddress.listed():
        yield ExecutorProcess(
            pid=inside.pid,
            device=inside.device,
            owner_pid=inside.owner_pid,
            socket=inside.socket,
        )


def _listening(port: int) -> Iterator[str]:
    """Yield the sockets that listen at a port, as /proc/PID/fd names them.

    Source: proc_pid_net(5): the fields of /proc/net/tcp are slot, local address, remote address,
    state, …, and the tenth is the inode; addresses are hexadecimal.
    """
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / "self" / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6
        for line in lines:
            columns = line.split()
            if columns[3] == LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                yield f"socket:[{columns[9]}]"


def _sockets_of(pid: int) -> set[str]:
    """Return the sockets of a process; none if it is another user's."""
    found: set[str] = set()
    try:
        descriptors = list((PROC / str(pid) / "fd").iterdir())
    except OSError:
        return found
    for descriptor in descriptors:
        try:
            found.add(str(descriptor.readlink()))
        except OSError:
            continue  # closed meanwhile
    return found
