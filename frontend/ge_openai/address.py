"""Addresses to listen on: as this machine reaches them, and as URLs write them."""

from __future__ import annotations

import socket

__all__ = ["family_of", "host_port", "reached_at"]

# What listens on every interface is reached by loopback.
LOOPBACKS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared


def reached_at(host: str) -> str:
    """Return the address at which this machine reaches what listens there."""
    return LOOPBACKS.get(host, host)


def host_port(host: str, port: int) -> str:
    """Return `host:port`, as URLs and gRPC take it: with IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def family_of(host: str) -> socket.AddressFamily:
    """Return the family of an address; a name is taken for one of IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
