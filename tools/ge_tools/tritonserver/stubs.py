"""The process of a running server: which one listens at a port, and what it was started with."""

from __future__ import annotations

import re
from pathlib import Path

from ge_backend.executor.process.host_processes import (
    SERVER,
    process_of,
    processes,
    words_of,
)
from ge_openai.address import reached_at
from ge_tools.tritonserver.addresses import addresses_here

__all__ = ["arguments_of", "server_at"]

DEFAULT_HTTP_PORT = 8000
EVERYWHERE = "0.0.0.0"  # noqa: S104 - compared
# As one word or as two, as getopt_long(3) takes it. libevhtp marks addresses of IPv6 by a word.
HTTP_PORT = re.compile(r"\0--http-port[=\0](\d{1,5})(?=\0)")
HTTP_ADDRESS = re.compile(r"\0--http-address[=\0](?:ipv6:)?([^\0]+)(?=\0)")


def server_at(host: str, port: int) -> int:
    """Return the process of the server whose HTTP is there; 0 where none is seen here."""
    asked = addresses_here(reached_at(host))
    for process in processes() if asked else ():
        words = words_of(process)
        if not words or Path(words[0]).name != SERVER:
            continue
        line = "\0".join([*words, ""])
        ports = HTTP_PORT.findall(line) or [DEFAULT_HTTP_PORT]
        listens = (HTTP_ADDRESS.findall(line) or [EVERYWHERE])[-1]
        if int(ports[-1]) == port and listens in {EVERYWHERE, "::", *asked}:
            return int(process.name)
    return 0


def arguments_of(server: int) -> list[str]:
    """Return what a server was started with; nothing where it is not seen."""
    return words_of(process_of(server))
