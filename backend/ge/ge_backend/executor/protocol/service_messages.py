"""The messages that open a service and that carry what is said to it; the rest is its own.

    stub → executor                        executor → stub
    OpenService(id, kind, key, spec)       ServiceOpened(id, spec), or Failed(id, …)
    Post(id, body)                         Post(id, body), any number, whenever there is something

All that a service and one of its clients say to each other has the id of the `OpenService` by which
that client came. What stands in the bodies is between the two: the connection only routes them.
Bodies in either direction keep their order. A client that leaves closes its connection.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OpenService", "Post", "ServiceOpened"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenService:
    """Share a service with all who name the same kind and key, or start it.

    Attributes:
        kind: a key of `SERVICES`.
        key: tells this model's service from others of the kind.
        spec: what the service is told by this client; its kind says what stands there.
    """

    id: int
    kind: str
    key: str
    spec: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOpened:
    """The service is there; `spec` is what it says of itself."""

    id: int
    spec: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """Something to or from a service; on the socket its body is bytes as they are, not JSON."""

    id: int
    body: bytes
