"""The services of an executor: each runs a loaded model for all stubs that use it.

A service is opened by the first connection that names its kind and key, shared by all that name
them later, and closed some time after the last one has left. It learns which clients join and
leave, gets what they post, posts to them at any time, and has the device's lanes do its steps
(`ServiceContext.lanes`). The form of its messages is its own.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from typing import Protocol

from ge_backend.device.base import Device
from ge_backend.device.imports import importing
from ge_backend.device.shared import Shared
from ge_backend.device.workspace.pool import Pool
from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol.messages import Post
from ge_backend.executor.protocol.outstanding import Outstanding
from ge_backend.executor.server.graph_cache import GraphCache
from ge_backend.executor.server.lanes import Lanes
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


class Client:
    """A connection that has opened a service, as the service sees it; compared by identity.

    Args:
        number: the id of the `OpenService` that it came by.
        send: sends a message to the stub.
    """

    def __init__(self, number: int, send: Callable[[Post], None]) -> None:
        self._number = number
        self._send = send

    def post(self, body: bytes) -> None:
        """Send something to the stub, from any thread; what one that has left misses is lost.

        It waits while the stub has not taken what came before. So it is for threads that a service
        has for this client; in `Service.receive` only where the stub reads while it sends.

        Args:
            body: at most `wire.MAX_MESSAGE_BYTES` with some 20 bytes before it.

        Raises:
            ProtocolError: the body is too long.
        """
        self._send(Post(id=self._number, body=body))


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

    def open(self, kind: str, key: str) -> Service:
        """Return the service of this kind and key; pair with `release`.

        Raises:
            ProtocolError: there is no such kind.
            GeError: it cannot be opened; nothing is held then.
        """
        return self._shared.acquire((kind, key), lambda: self._made(kind, key))

    def release(self, kind: str, key: str) -> None:
        """Give up one share of a service."""
        self._shared.release((kind, key))

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
