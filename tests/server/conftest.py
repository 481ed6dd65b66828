"""Real servers for tests: one per model repository, checked to leave nothing behind.

Tests that need of a host what not every release has ask `server.abilities`, and are skipped with
that reason or expect what the release does. GE_HOST_TABLE=1 prints a line for docs/releases.md.
"""

import os
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
import tritonclient.grpc as grpcclient

from builders.servers import server_options
from ge_backend.errors import ServerError
from ge_tools.tritonserver import (
    Abilities,
    ServerInstallation,
    TritonServer,
    find_server,
    processes_of,
    running_python,
    shared_memory_of,
)

ROOT = Path(__file__).resolve().parents[2]
# A client that leaves its HTTP connection open holds a server for this long.
EXIT_TIMEOUT_S = 5

SEEN = pytest.StashKey[Abilities | None]()

StartServer = Callable[..., TritonServer]


@pytest.fixture(scope="session")
def installation() -> ServerInstallation:
    """The tritonserver of this machine; without one these tests are skipped."""
    try:
        found = find_server()
    except ServerError as error:
        absent(str(error))
    if found.stub is None:
        absent(f"{found.binary} has no stub for Python {running_python()}")
    return found


def absent(reason: str) -> NoReturn:
    """Skip, unless somebody has named a server: that it cannot be tested is a failure then."""
    (pytest.fail if os.environ.get("GE_TRITONSERVER") else pytest.skip)(reason)


class Servers:
    """The servers that run, and the ones that are being stopped beside the next tests."""

    def __init__(self, folders, logs: dict[str, Path], ending: list[Future[None]]) -> None:
        self._folders, self._logs, self._ending = folders, logs, ending
        self._running: dict[str, TritonServer] = {}
        self._stopping = ThreadPoolExecutor(thread_name_prefix="stop")
        self.shared: list[Path] = []
        self.seen: Abilities | None = None

    def start(
        self, installation: ServerInstallation, repository: Path, **fields: object
    ) -> TritonServer:
        key = repr((repository.resolve(), sorted(fields.items())))
        if key not in self._running:
            log = self._folders.mktemp("log") / "server.log"
            options = server_options(
                repository,
                log_file=log,
                **{"exit_timeout_s": EXIT_TIMEOUT_S, "client_shm": True, **fields},
            )
            server = TritonServer(installation, options)
            server.start()
            self.seen = server.abilities
            self._logs[f"the server of {repository}"] = log
            self._running[key] = server
        return self._running[key]

    def leave(self) -> None:
        """Stop those that no other module asks for: what idles takes time of what is tested."""
        for key, server in list(self._running.items()):
            (repository,) = server.options.repositories
            if repository.resolve() not in self.shared:
                self._logs.pop(f"the server of {repository}", None)
                self._ending.append(self._stopping.submit(stop_without_a_trace, server))
                del self._running[key]

    def close(self) -> None:
        """Stop all, and fail if one has left a trace."""
        self.shared.clear()
        self.leave()
        self._stopping.shutdown()
        for stop in self._ending:
            stop.result()


@pytest.fixture(scope="session")
def servers(request, tmp_path_factory, server_logs, servers_ending) -> Iterator[Servers]:
    """All servers of `triton_server`."""
    servers = Servers(tmp_path_factory, server_logs, servers_ending)
    yield servers
    request.config.stash[SEEN] = servers.seen
    servers.close()


@pytest.fixture(scope="session")
def made_models(example_models, servers) -> Path:
    """The example models, whose server is shared by all who ask for one."""
    servers.shared.append(example_models.resolve())
    return example_models


@pytest.fixture(scope="module")
def triton_server(installation, servers) -> Iterator[StartServer]:
    """A function that starts a server on a model repository, or returns the one that serves it.

    `triton_server(repository)`, `triton_server(repository, environment={…}, arguments=(…))`. Ports
    are free ones, the log is attached to failures, and at the end nothing of any server is left.
    """
    yield partial(servers.start, installation)
    servers.leave()


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[grpcclient.InferenceServerClient]:
    """A gRPC client of the module's server."""
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        yield connected


def stop_without_a_trace(server: TritonServer) -> None:
    """Stop a server and fail if a process, a folder or a shared-memory region of it is left."""
    directory = server.directory
    server.stop()
    assert processes_of(directory.run) == []
    assert shared_memory_of(directory.shm_prefix) == []
    assert not directory.path.exists()


def pytest_terminal_summary(terminalreporter, config) -> None:
    """Print what a run against an installation says about its release."""
    if os.environ.get("GE_HOST_TABLE"):
        seen = config.stash.get(SEEN, None)
        release = ".".join(map(str, seen.release)) if seen and seen.release else "unknown"
        counts = [
            f"{len(terminalreporter.stats[kind])} {kind}"
            for kind in ("passed", "skipped", "failed", "error")
            if terminalreporter.stats.get(kind)
        ]
        options = (("-k", config.option.keyword), ("-m", config.option.markexpr))
        chosen = [f"{option} '{text}'" for option, text in options if text]
        what = f"`{' '.join([*config.args, *chosen])}` on Python {platform.python_version()}"
        row = (release, what, ", ".join(counts), datetime.now(timezone.utc).date().isoformat())
        terminalreporter.write_line(f"| {' | '.join(row)} |")
