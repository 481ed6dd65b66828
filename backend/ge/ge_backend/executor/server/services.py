"""The services of an executor: each runs a loaded model for all stubs that use it.

A service is opened by the first connection that names its kind and key, shared by all that name
them later, and closed some time after the last one has left. Each connection that joins it is a
member, gets what its stub says, answers at any time, and has the device's lanes do the work
(`ServiceContext.lanes`). A graph is one, whose messages have types of their own; the form of what
is posted to others is theirs.
"""

from __future__ import annotations

import itertools
import pkgutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ge_backend.device.base import Device
from ge_backend.device.imports import importing
from ge_backend.device.shared import Shared
from ge_backend.device.workspace.pool import Pool
from ge_backend.errors import OutOfMemory, ProtocolError
from ge_backend.executor.protocol.messages import Load, Loaded, Message, Ok, OpenService, Post
from ge_backend.executor.protocol.outstanding import Outstanding
from ge_backend.executor.server.device_tensors import DeviceTensorStores
from ge_backend.executor.server.lanes import Lanes
from ge_backend.executor.server.timeline import Timeline

if TYPE_CHECKING:
    from ge_backend.executor.server.stub_handler import StubHandler

__all__ = [
    "GRAPH",
    "SERVICES",
    "Client",
    "Member",
    "Service",
    "ServiceContext",
    "Services",
]

GRAPH = "graph"
# Kind -> "module:class". A class is called with a context and what opens it, and is a `Service`
# then.
SERVICES: Mapping[str, str] = {
    GRAPH: "ge_backend.executor.server.graphs:GraphService",
    "generation": "ge_text.service.service:GenerationService",
}

_Result = TypeVar("_Result")


class ServiceContext(Protocol):
    """What an executor gives its services to work with.

    Attributes:
        device: loads graphs, has memory.
        lanes: run a service's steps: `submit(Job(owner=service, …))`; see `Job`.
        pool: the workspace that jobs name a `holder` of.
        outstanding: what stubs choose a device by; `add` while work waits or runs.
        timeline: `add` every step that a lane has made.
        tensor_stores: what stays on the device between runs.
        services: all of them.
        on_fault: to be called when the device broke; does not return in a process of its own.
    """

    device: Device
    lanes: Lanes
    pool: Pool
    outstanding: Outstanding
    timeline: Timeline
    tensor_stores: DeviceTensorStores
    services: Services
    on_fault: Callable[[], None]


@dataclass(frozen=True, eq=False)
class Client:
    """A connection that opens a service; compared by identity.

    Attributes:
        opened: what it comes by.
        connection: its own.
        post: sends a body to the stub, from any thread; what one that has left misses is lost. It
            waits while the stub has not taken what came before. So it is for threads that a service
            has for this client; in `Member.receive` only where the stub reads while it sends. A
            body has at most `wire.MAX_MESSAGE_BYTES` with some 20 bytes before it; one that is
            longer is a ProtocolError.
    """

    opened: Load | OpenService
    connection: StubHandler
    post: Callable[[bytes], None]


class Member(Protocol):
    """What one client has of a service; called by its connection's thread."""

    @property
    def answer(self) -> Loaded | Ok:
        """What the client is told first."""

    def receive(self, message: Any) -> Message | None:
        """Take what the client says, without waiting for steps.

        Args:
            message: a `Post`, or what is asked of a graph.

        Returns:
            What is to be answered at once; an error that is raised is answered as `Failed`.
        """

    def leave(self) -> None:
        """Drop what the client has asked for: its stub has left, or died."""


class Service(Protocol):
    """One loaded model, whatever the number of its clients, who come and go side by side."""

    def join(self, client: Client) -> Member:
        """Take on a client. May take as long as loading a model does.

        Raises:
            GeError: it is refused, and is no client then.
        """

    def close(self) -> None:
        """Give everything back: no client is left and none will come."""


class Services:
    """Opens a service for its first client and closes it some time after its last one left.

    The delay lets `auto_complete_config`, which runs in a process of its own, read a signature
    and leave, and the instance that comes next find the graph still loaded.

    Args:
        context: given to each.
        linger_s: how long a service without clients stays.
        kinds: as `SERVICES`.

    Attributes:
        evictions: graphs without a client that were closed before their time, to make room.
        numbers: tell graphs apart.
    """

    def __init__(self, context: ServiceContext, linger_s: float, kinds: Mapping[str, str]) -> None:
        self.evictions = 0
        self.numbers = itertools.count(1)
        self._context = context
        self._kinds = kinds
        self._shared: dict[str, Shared[str, Service]] = {
            kind: Shared(linger_s, lambda one: one.close()) for kind in kinds
        }
        self._lock = threading.Lock()

    @property
    def changes(self) -> int:
        """How often a service has come or gone so far."""
        return sum(shared.changes for shared in self._shared.values())

    def __len__(self) -> int:
        """Return how many are open."""
        return sum(map(len, self._shared.values()))

    def of(self, kind: str) -> Shared[str, Service]:
        """Return those of a kind, by key: graphs by `repr` of their source.

        Raises:
            ProtocolError: there is no such kind.
        """
        if kind not in self._shared:
            known = ", ".join(self._kinds)
            raise ProtocolError(f"service kind {kind!r} is unknown; known kinds are {known}")
        return self._shared[kind]

    def join(self, message: Load | OpenService, connection: StubHandler) -> Member:
        """Make a connection a client of a service, which is opened first if it is not open.

        Args:
            message: names it.
            connection: of the client.

        Returns:
            Its part of the service, to be paired with `leave`.

        Raises:
            ProtocolError: there is no such kind.
            GeError: it cannot be opened, or refuses this client; nothing is held then.
        """
        kind, key = _named(message)
        service = self.of(kind).acquire(key, lambda: self._made(kind, message))
        client = Client(
            message,
            connection,
            lambda body: connection.outgoing.send(Post(id=message.id, body=body), wait=True),
        )
        try:
            return service.join(client)
        except BaseException:
            self.of(kind).release(key)
            raise

    def leave(self, message: Load | OpenService, member: Member) -> None:
        """Have a client leave its service, and give up its share of it."""
        kind, key = _named(message)
        member.leave()
        self.of(kind).release(key)

    def close_idle(self, *, now: bool = False) -> int:
        """Close the services that have had no client for the linger time, or all of those.

        Returns:
            How many were closed meanwhile; with `now` what others are closing is waited for.
        """
        closed = self._closed
        for shared in self._shared.values():
            shared.close_idle(now=now)
        return self._closed - closed

    def with_room(self, action: Callable[[], _Result]) -> _Result:
        """Do it; where memory is short, close what has no client and do it once more.

        Raises:
            OutOfMemory: there was none, or it was not enough.
        """
        closed = self._closed
        try:
            return action()
        except OutOfMemory:
            for kind, shared in self._shared.items():
                evicted = shared.close_idle(now=True)
                with self._lock:
                    self.evictions += evicted if kind == GRAPH else 0
            if self._closed == closed:
                raise
        return action()

    @property
    def _closed(self) -> int:
        return sum(shared.closed for shared in self._shared.values())

    def _made(self, kind: str, message: Load | OpenService) -> Service:
        if kind != GRAPH:  # else the memory of the others is lacking in this one's cache
            self.of(kind).close_idle(now=True)
        with importing():
            make = pkgutil.resolve_name(self._kinds[kind])
        service: Service = make(self._context, message)
        return service


def _named(message: Load | OpenService) -> tuple[str, str]:
    """Return the kind and the key of the service that a message opens."""
    if isinstance(message, Load):
        return GRAPH, repr(message.source)
    return message.kind, message.key
