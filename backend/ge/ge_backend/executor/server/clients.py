"""What one connection has of services: itself, once for each that it has opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol.arena import Segment
from ge_backend.executor.protocol.messages import Message, OpenService, Post, ServiceOpened
from ge_backend.executor.server.services import Service, Services

__all__ = ["Clients", "ConnectedClient"]

Send = Callable[[Message, tuple[int, ...]], None]


class ConnectedClient:
    """A connection as one of its services sees it: a `Client`.

    Args:
        number: the id of the `OpenService` that it came by.
        send: sends a message and a descriptor; see `Client.post`.
        arenas: that the connection has attached, by their ids; it changes them.
    """

    def __init__(self, number: int, send: Send, arenas: Mapping[int, Segment]) -> None:
        self._number = number
        self._send = send
        self._arenas = arenas

    def post(self, body: bytes, descriptor: int | None = None) -> None:
        """See `Client`."""
        post = Post(id=self._number, body=body)
        self._send(post, () if descriptor is None else (descriptor,))

    def segment(self, arena: int) -> Segment:
        """See `Client`."""
        segment = self._arenas.get(arena)
        if segment is None:
            raise ProtocolError(f"arena {arena} was never attached")
        return segment


class Clients:
    """The services that a connection has opened; used by its thread.

    Args:
        services: of the executor.
        send: as in `ConnectedClient`.
        arenas: as in `ConnectedClient`.
    """

    def __init__(self, services: Services, send: Send, arenas: Mapping[int, Segment]) -> None:
        self._services = services
        self._send = send
        self._arenas = arenas
        self._joined: dict[int, tuple[OpenService, Service, ConnectedClient]] = {}

    def open(self, message: OpenService) -> ServiceOpened:
        """Join a service, which is opened if nobody has.

        Raises:
            GeError: it cannot be opened, or refuses this client.
        """
        service = self._services.open(message.kind, message.key)
        client = ConnectedClient(message.id, self._send, self._arenas)
        try:
            spec = service.join(client, message.spec)
        except BaseException:
            self._services.release(message.kind, message.key)
            raise
        self._joined[message.id] = (message, service, client)
        return ServiceOpened(id=message.id, spec=spec)

    def receive(self, post: Post) -> None:
        """Give a post to the service that it is for.

        Raises:
            ProtocolError: there is no such.
            GeError: what the service raises.
        """
        joined = self._joined.get(post.id)
        if joined is None:
            raise ProtocolError(f"service {post.id} was not opened by this connection")
        _, service, client = joined
        service.receive(client, post.body)

    def close(self) -> None:
        """Leave all services."""
        for message, service, client in self._joined.values():
            service.leave(client)
            self._services.release(message.kind, message.key)
        self._joined.clear()
