"""The services of an executor: each runs a loaded model for all stubs that use it.

A service is opened by the first connection that names its kind and key, shared by all that name
them later, and closed some time after the last one has left. It learns which clients join and
leave, gets what they post, posts to them at any time, and has the device's lanes do its steps
(`ServiceContext.lanes`). The form of its messages is its own.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ge_backend.device.base import Device
from ge_backend.device.imports import importing
from ge_backend.device.shared import Shared
from ge_backend.device.workspace.pool import Pool
from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol.messages import OpenService, Post
from ge_backend.executor.protocol.outstanding import Outstanding
from ge_backend.executor.server.graph_cache import GraphCache
from ge_backend.executor.server.lanes import Lanes
from ge_backend.executor.server.outgoing import Outgoing
from ge_backend.executor.server.timeline import Timeline

__all__ = ["SERVICES", "Client", "Service", "ServiceContext", "Services"]

# Kind -> "module:class". A class is called with a context and the key, and is a `Service` then.
SERVICES: Mapping[str, str] = {
    "generation": "ge_text.service.service:GenerationService",
}


class ServiceContext(Protocol):
    """What an executor gives its services to work with.

    Attributes:
        device: loads graphs, has memory.
        graph_cache: graphs by source, shared with all who load the same; `acquire` and `release`.
        lanes: run a service's steps: `submit(Job(owner=service, …))`; see `Job`.
        pool: the workspace that jobs name a `holder` of.
        outstanding: what stubs choose a device by; `add` while work waits or runs.
        timeline: `add` every step that a lane has made.
        on_fault: to be called when the device broke; does not return in a process of its own.
    """

    device: Device
    graph_cache: GraphCache
    lanes: Lanes
    pool: Pool
    outstanding: Outstanding
    timeline: Timeline
    on_fault: Callable[[], None]


@dataclass(frozen=True, eq=False)
class Client:
    """A connection that has opened a service; compared by identity.

    Attributes:
        opened: what it came by.
        service: what it has opened.
        post: sends a body to the stub, from any thread; what one that has left misses is lost. It
            waits while the stub has not taken what came before. So it is for threads that a service
            has for this client; in `Service.receive` only where the stub reads while it sends. A
            body has at most `wire.MAX_MESSAGE_BYTES` with some 20 bytes before it; one that is
            longer is a ProtocolError.
    """

    opened: OpenService
    service: Service
    post: Callable[[bytes], None]


class Service(Protocol):
    """One loaded model, whatever the number of its clients.

    The methods are called by the threads of connections, side by side, and must not wait for steps.
    """

    def join(self, client: Client) -> str:
        """Take on a client; return what it is to know. May take as long as loading a model does.

        Raises:
            GeError: it is refused, and is no client then.
        """

    def receive(self, client: Client, body: bytes) -> None:
        """Take what a client has posted. An error that is raised is sent as `Failed`."""

    def leave(self, client: Client) -> None:
        """Drop what a client has asked for: its stub has left, or died."""

    def close(self) -> None:
        """Give everything back: no client is left and none will come."""


class Services:
    """Opens a service for its first client and closes it some time after its last one left.

    Args:
        context: given to each.
        linger_s: how long a service without clients stays.
        kinds: as `SERVICES`.
    """

    def __init__(self, context: ServiceContext, linger_s: float, kinds: Mapping[str, str]) -> None:
        self._context = context
        self._kinds = kinds
        self._shared: Shared[tuple[str, str], Service] = Shared(linger_s, lambda one: one.close())

    @property
    def changes(self) -> int:
        """How often a service has come or gone so far."""
        return self._shared.changes

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._shared)

    def join(self, message: OpenService, outgoing: Outgoing) -> tuple[Client, str]:
        """Make a connection a client of a service, which is opened first if it is not open.

        Args:
            message: names it.
            outgoing: the way to the stub.

        Returns:
            The client, to be paired with `leave`, and what it is to know.

        Raises:
            ProtocolError: there is no such kind.
            GeError: it cannot be opened, or refuses this client; nothing is held then.
        """
        key = message.kind, message.key
        service = self._shared.acquire(key, lambda: self._made(*key))
        client = Client(
            message, service, lambda body: outgoing.send(Post(id=message.id, body=body), wait=True)
        )
        try:
            return client, service.join(client)
        except BaseException:
            self._shared.release(key)
            raise

    def leave(self, client: Client) -> None:
        """Have a client leave its service, and give up its share of it."""
        client.service.leave(client)
        self._shared.release((client.opened.kind, client.opened.key))

    def close_idle(self, *, now: bool = False) -> int:
        """Close the services that have had no client for the linger time, or all of those.

        Returns:
            How many were closed meanwhile; with `now` what others are closing is waited for.
        """
        closed = self._shared.closed
        self._shared.close_idle(now=now)
        return self._shared.closed - closed

    def _made(self, kind: str, key: str) -> Service:
        self.close_idle(now=True)  # else their memory is lacking in this one's cache
        if kind not in self._kinds:
            known = ", ".join(self._kinds)
            raise ProtocolError(f"service kind {kind!r} is unknown; known kinds are {known}")
        with importing():
            make = pkgutil.resolve_name(self._kinds[kind])
        service: Service = make(self._context, key)
        return service
