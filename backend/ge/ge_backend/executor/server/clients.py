"""What one connection has of services: itself, once for each that it has opened."""

from __future__ import annotations

from collections.abc import Callable

from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol.messages import OpenService, Post, ServiceOpened
from ge_backend.executor.server.services import Client, Service, Services

__all__ = ["Clients"]


class Clients:
    """The services that a connection has opened; used by its thread.

    Args:
        services: of the executor.
        send: as in `Client`.
    """

    def __init__(self, services: Services, send: Callable[[Post], None]) -> None:
        self._services = services
        self._send = send
        self._joined: dict[int, tuple[OpenService, Service, Client]] = {}

    def open(self, message: OpenService) -> ServiceOpened:
        """Join a service, which is opened first if it is not open.

        Raises:
            GeError: it cannot be opened, or refuses this client.
        """
        service = self._services.open(message.kind, message.key)
        client = Client(message.id, self._send)
        try:
            spec = service.join(client)
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
