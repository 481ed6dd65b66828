"""`ge-backend health`: whether a server can serve, for the probes of containers and for people."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ge_backend.errors import ConfigError, ServerError
from ge_backend.executor.process.host_processes import (
    SERVER,
    process_of,
    processes,
    values_of,
    words_of,
)
from ge_openai.address import reached_at
from ge_tools.tritonserver.addresses import addresses_here
from ge_tools.tritonserver.api import ServerApi
from ge_tools.tritonserver.health import stub_losses
from ge_tools.tritonserver.keys import HTTP_RESTRICTED, restricted_groups, restrictions
from ge_tools.tritonserver.options import LAST_PORT

__all__ = ["arguments_of", "register", "server_at"]

# The probes of the files in deploy/ wait 10 s, and throw away what is said later.
ANSWER_S = 5.0

DESCRIPTION = """\
Exit code 0 if the server lives and every model that it calls READY has all its stubs, else 1 with
the reason. The server's own endpoints call a model READY whose stub has died. Run it where the
server runs: from elsewhere its stubs are not seen, and only its own word counts.
"""
DEFAULT_HTTP_PORT = "8000"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - compared


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "health", help="tell whether a server can serve", description=DESCRIPTION
    )
    parser.add_argument(
        "--http", default="localhost:8000", metavar="HOST:PORT", help="default: %(default)s"
    )
    parser.add_argument(
        "--ready", action="store_true", help="also fail while the server is not ready"
    )
    parser.add_argument(
        HTTP_RESTRICTED,
        action="append",
        default=[],
        metavar="GROUPS:HEADER=KEY",
        help="keys, as the server was given them; default: those of the server that runs here",
    )
    parser.set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what is wrong, or that nothing is; return the exit code."""
    problems = _problems(arguments)
    for problem in problems:
        print(f"ge-backend: {problem}", file=sys.stderr)
    if not problems:
        print("healthy")
    return 1 if problems else 0


def _problems(arguments: argparse.Namespace) -> list[str]:
    host, _, port = arguments.http.removeprefix("http://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= LAST_PORT:
        raise ConfigError(
            f"--http {arguments.http!r}: expected HOST:PORT, with a port from 1 to {LAST_PORT}"
        )
    host = host.removeprefix("[").removesuffix("]")
    server = server_at(host, int(port))
    keys = restrictions(arguments_of(server), HTTP_RESTRICTED)
    for text in arguments.http_restricted_api:
        keys |= restricted_groups(text)
    api = ServerApi(host, int(port), keys=keys, timeout_s=ANSWER_S)
    try:
        if not api.is_live():
            return [f"the server at {arguments.http} does not answer, or this is not its HTTP port"]
        found = [str(loss) for loss in stub_losses(api, server)] if server else []
        if arguments.ready and not api.is_ready():
            found.append(f"the server at {arguments.http} is not ready")
    except ServerError as error:
        return [str(error)]
    return found


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
