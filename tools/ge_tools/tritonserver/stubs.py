"""The process of a running server: which one listens at a port, and what it was started with."""

from __future__ import annotations

from pathlib import Path

from ge_backend.executor.process.host_processes import (
    SERVER,
    process_of,
    processes,
    values_of,
    words_of,
)
from ge_openai.address import reached_at
from ge_tools.tritonserver.addresses import addresses_here

__all__ = ["arguments_of", "server_at"]

DEFAULT_HTTP_PORT = "8000"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - compared


def server_at(host: str, port: int) -> int:
    """Return the process of the server whose HTTP is there; 0 where none is seen here."""
    asked = addresses_here(reached_at(host))
    for process in processes() if asked else ():
        words = words_of(process)
        if not words or Path(words[0]).name != SERVER:
            continue
        given = [DEFAULT_HTTP_PORT, *values_of(words, "--http-port")][-1]
        address = [EVERYWHERE, *values_of(words, "--http-address")][-1]
        listens = address.removeprefix("ipv6:")  # libevhtp's mark
        if given == str(port) and listens in {EVERYWHERE, "::", *asked}:
            return int(process.name)
    return 0


def arguments_of(server: int) -> list[str]:
    """Return what a server was started with; nothing where it is not seen."""
    return words_of(process_of(server))
