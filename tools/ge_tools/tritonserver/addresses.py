"""Addresses of a host: in numbers, and those that are this machine's."""

from __future__ import annotations

import contextlib
import socket

from ge_backend.errors import ConfigError
from ge_openai.address import family_of

__all__ = ["addresses_here", "numeric"]


def numeric(host: str) -> str:
    """Return a host as an address in numbers, one of IPv4 where it has any.

    Raises:
        ConfigError: nothing is known of it.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a name may be too long for IDNA
        raise ConfigError(
            f"host {host!r} has no address: {error}; expected one of this machine's addresses or "
            "names, or 0.0.0.0 for all"
        ) from error
    families = [family for family, *_ in found]
    chosen = socket.AF_INET if socket.AF_INET in families else families[0]
    return str(found[families.index(chosen)][4][0])


def addresses_here(host: str) -> set[str]:
    """Return those addresses of a host, in numbers, that this machine has."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {a for a in {str(address[0]) for *_, address in found} if _is_here(a)}


def _is_here(address: str) -> bool:
    """Whether a server can listen there."""
    with contextlib.suppress(OSError), socket.socket(family_of(address)) as probe:
        probe.bind((address, 0))
        return True
    return False
