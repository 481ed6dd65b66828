"""What a server is started with, as values, and the ports it may have."""

from __future__ import annotations

import contextlib
import errno
import random
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ge_backend.errors import ConfigError, ServerError
from ge_backend.executor.process.host_processes import values_of
from ge_openai.address import family_of, reached_at
from ge_tools.tritonserver.abilities import ABILITIES, Abilities
from ge_tools.tritonserver.addresses import numeric
from ge_tools.tritonserver.api import ServerApi
from ge_tools.tritonserver.keys import (
    CONTROL,
    GRPC_RESTRICTED,
    HTTP_RESTRICTED,
    Keys,
    restrictions,
)

__all__ = ["KEY_HEADER", "ServerOptions", "free_ports"]

# The host's refusal of who lacks the key names this header, and nothing else: so it says what to
# do. Over gRPC it is called `triton-grpc-protocol-` and this.
KEY_HEADER = "only-with-model-control-mode-explicit"

# Flags that start and watch the server; each has an option of ours.
OWNED = (
    "allow-http",
    "backend-directory",
    "exit-timeout-secs",
    "grpc-address",
    "grpc-port",
    "http-address",
    "http-port",
    "metrics-address",
    "metrics-port",
    "model-repository",
    "model-store",
)
# Below the ports that outgoing connections are given (ip_local_port_range starts at 32768): a
# server binds only after its models are loaded, and no other may have got the port meanwhile.
PORTS = range(20_000, 32_000)
# A search for free ports holds each port that it tries for some microseconds.
ATTEMPTS, TRIED_S = 3, 0.02
LAST_PORT = 65_535
LOOPBACK = "127.0.0.1"
# What a shell does not take as it is. The host starts a Python model's process by one, unquoted,
# and waits for ever for the process that does not come.
# Source: python_backend r24.10 src/stub_launcher.cc; seen on 2.51.
SHELL = re.compile(r"""[\s"'\\$`&|;<>()]""")
# In any case. Source: server r24.10 src/command_line_parser.cc, ParseOption.
YES = ("true", "on", "1")
HAS_STUB = re.compile(r"""^\s*backend\s*:\s*["'](ge|python)["']""", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How to start one server.

    Attributes:
        repositories: model repositories, at least one.
        host: the address to listen on; `0.0.0.0` for every interface.
        http_port, grpc_port, metrics_port: 0 takes a free one.
        log_file: where the server's output goes; None: where ours goes.
        environment: variables set for the server, its stubs and executors, such as `GE_DEVICE`.
        arguments: further tritonserver arguments, as on its command line.
        control_key: only who sends it as `KEY_HEADER` may load, unload and list models: a load may
            bring a configuration and files, so it runs what it likes. A protocol for which the
            arguments have a key of their own asks for that instead. Empty: anyone may, if the
            arguments allow it.
        client_shm: clients may have their tensors read from and written to shared memory, which
            some releases allow only where they are told to, and older ones always.
        grpc_threads: that take gRPC requests; 0 leaves it to the server.
        grpc_response_pool: responses of a gRPC stream that may wait for their client; 0 leaves it
            to the server.
        start_timeout_s: how long models may take to load, warm-up included.
        exit_timeout_s: how long requests in flight may take at the end. An HTTP client that keeps
            its connection open holds the server for all of it.
    """

    repositories: tuple[Path, ...]
    host: str = LOOPBACK
    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    log_file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    control_key: str = ""
    client_shm: bool = False
    grpc_threads: int = 0
    grpc_response_pool: int = 0
    start_timeout_s: float = 600.0
    exit_timeout_s: int = 10

    @property
    def local_host(self) -> str:
        """The address at which this machine reaches the server."""
        return reached_at(self.host)

    @property
    def has_metrics(self) -> bool:
        """Whether the server has a metrics page: yes, unless a further argument says otherwise."""
        given = values_of(self.arguments, "--allow-metrics", "--allow-m")
        return not given or given[-1].lower() in YES

    @property
    def http_keys(self) -> Keys:
        """The header and the key of each group that HTTP restricts."""
        ours = {CONTROL: (KEY_HEADER, self.control_key)} if self._own(HTTP_RESTRICTED) else {}
        return ours | restrictions(self.arguments, HTTP_RESTRICTED)

    @property
    def api(self) -> ServerApi:
        """HTTP of the server that has been started so, with the keys that open it."""
        return ServerApi(self.local_host, self.http_port, self.http_keys)

    def checked(self) -> ServerOptions:
        """Return these options with the host in numbers, every port chosen and known to be free.

        Raises:
            ConfigError: a repository is not a folder, or is a model itself, or Triton could not
                start its models; a further argument has its own option; the host has no address;
                a port is none, or given twice; or the exit timeout is negative.
            ServerError: a port is in use, or the host's address is not this machine's.
        """
        for repository in self.repositories:
            if not repository.is_dir():
                raise ConfigError(f"model repository {repository} is not a folder")
            if (repository / "config.pbtxt").is_file():
                above = repository.resolve().parent
                raise ConfigError(
                    f"{repository} is one model; expected the folder above it, {above}"
                )
            _refuse_for_shell(repository)
        _refuse_owned(self.arguments)
        if self.exit_timeout_s < 0:
            raise ConfigError(f"exit timeout of {self.exit_timeout_s} s; expected 0 or more")
        host = numeric(self.host)
        given = (self.http_port, self.grpc_port, self.metrics_port)
        for port in filter(None, given):
            if not 0 < port <= LAST_PORT:
                raise ConfigError(f"port {port} is none; expected 1 to {LAST_PORT}, or 0 for any")
            if given.count(port) > 1:
                raise ConfigError(f"port {port} is given twice; HTTP, gRPC and metrics need three")
            if not _is_free(host, port):
                raise ServerError(f"port {port} of {host} is in use; choose another")
        fresh = iter(free_ports(given.count(0), host=host, but=given))
        http, grpc, metrics = (port or next(fresh) for port in given)
        return replace(self, host=host, http_port=http, grpc_port=grpc, metrics_port=metrics)

    @contextlib.contextmanager
    def reserved(self) -> Iterator[None]:
        """Keep the ports from others that look for free ones while the server loads its models.

        The server itself can listen there: a socket that may share its address, as the server's do,
        leaves it to them as long as it does not listen. Source: socket(7), SO_REUSEADDR.

        Raises:
            ServerError: another process listens at one of them by now.
        """
        with contextlib.ExitStack() as stack:
            for port in (self.http_port, self.grpc_port, self.metrics_port):
                held = stack.enter_context(socket.socket(family_of(self.host)))
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                _bind(held, self.host, port)
            yield

    def flags(self, abilities: Abilities) -> list[str]:
        """Return these options as flags of a server; repositories absolute, as its cwd differs.

        The host's HTTP is libevhtp, which marks IPv6 by a word; its gRPC takes brackets (2.51).

        Raises:
            ConfigError: an option is asked for whose flag the server does not know.
        """
        six = family_of(self.host) is socket.AF_INET6
        http, grpc = (f"ipv6:{self.host}", f"[{self.host}]") if six else (self.host, self.host)
        keyed = f"{CONTROL}:{KEY_HEADER}={self.control_key}"
        return [
            *(f"--model-repository={path.absolute()}" for path in self.repositories),
            f"--http-address={http}",
            f"--http-port={self.http_port}",
            f"--grpc-address={grpc}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-address={http}",
            f"--metrics-port={self.metrics_port}",
            f"--exit-timeout-secs={self.exit_timeout_s}",
            *(f"{f}={keyed}" for f in (HTTP_RESTRICTED, GRPC_RESTRICTED) if self._own(f)),
            *self._flags_of_some_releases(abilities),
            *self.arguments,
        ]

    def _flags_of_some_releases(self, abilities: Abilities) -> Iterator[str]:
        if self.client_shm and abilities.has("client_shm"):
            yield f"--{ABILITIES['client_shm'].flag}=true"
        asked = {"grpc_threads": self.grpc_threads, "response_pool": self.grpc_response_pool}
        for name, value in asked.items():
            ability = ABILITIES[name]
            if value and not abilities.has(name):
                since = ".".join(map(str, ability.since))
                raise ConfigError(
                    f"this server knows no --{ability.flag}: it is there from Triton {since} "
                    f"(container {ability.container}) on; leave the option out"
                )
            if value:
                yield f"--{ability.flag}={value}"

    def _own(self, flag: str) -> bool:
        """Whether `control_key` is that of a protocol; the host takes one key for a group."""
        return bool(self.control_key) and CONTROL not in restrictions(self.arguments, flag)


def free_ports(count: int, *, host: str = LOOPBACK, but: Iterable[int] = ()) -> list[int]:
    """Return `count` different ports that are neither used nor reserved, none of them in `but`.

    Raises:
        ServerError: there are not that many, or none can be had of this host.
    """
    taken = set(but)
    candidates = (port for port in random.sample(PORTS, len(PORTS)) if port not in taken)
    found: list[int] = []
    while len(found) < count:
        port = next(candidates, None)
        if port is None:
            raise ServerError(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")
        if _is_free(host, port, shared=False):
            found.append(port)
    return found


def _bind(held: socket.socket, host: str, port: int) -> None:
    """Bind to a port; one that another process only tries at this moment is free the next.

    Raises:
        ServerError: it is in use.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            held.bind((host, port))
        except OSError as error:
            if attempt == ATTEMPTS:
                raise ServerError(f"port {port} of {host} is in use; choose another") from error
            time.sleep(TRIED_S)
        else:
            return


def _is_free(host: str, port: int, *, shared: bool = True) -> bool:
    """Return whether a server could listen there; unless shared, whether the port is free."""
    try:
        with contextlib.closing(socket.socket(family_of(host))) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shared)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise ServerError(f"port {port} of {host} cannot be had: {error.strerror}") from error
    return True


def _refuse_for_shell(repository: Path) -> None:
    path = repository.absolute()
    files = (file for file in path.glob("*/config.pbtxt") if SHELL.search(file.parent.name))
    stubs = (f.parent for f in files if HAS_STUB.search(f.read_text("utf-8", "replace")))
    bad = path if SHELL.search(str(path)) else next(stubs, None)
    if bad is not None:
        raise ConfigError(
            f"{str(bad)!r}: Triton starts a Python model by a shell that is given the path as it "
            "is, and hangs; expected none of spaces, quotes and \\$`&|;<>() in it; rename the "
            "folder, or make a symbolic link to it without them"
        )


def _refuse_owned(arguments: Iterable[str]) -> None:
    for argument in arguments:
        name = argument.lstrip("-").split("=", 1)[0]
        if name in OWNED:
            raise ConfigError(
                f"tritonserver argument {argument!r}: ge-backend sets --{name} itself, "
                "because it must know it; see ge-backend serve --help for the option"
            )
