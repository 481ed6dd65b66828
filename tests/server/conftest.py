"""Real servers for tests: one per model repository, checked to leave nothing behind."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ge_backend.errors import ServerError
from ge_backend.tritonserver import (
    ServerInstallation,
    ServerOptions,
    TritonServer,
    find_server,
    processes_of,
    running_python,
    shared_memory_of,
)

ROOT = Path(__file__).resolve().parents[2]
# A client that leaves its HTTP connection open holds a server for this long.
EXIT_TIMEOUT_S = 5

StartServer = Callable[..., TritonServer]


@pytest.fixture(scope="session")
def installation() -> ServerInstallation:
    """The tritonserver of this machine; without one these tests are skipped."""
    try:
        found = find_server()
    except ServerError as error:
        pytest.skip(str(error))
    if found.stub is None:
        pytest.skip(f"{found.binary} has no stub for Python {running_python()}")
    return found


@pytest.fixture(scope="session")
def made_models(tmp_path_factory) -> Path:
    """The model repository of this project with its model files, made once."""
    models = tmp_path_factory.mktemp("models")
    script = ROOT / "model_repository" / "make.py"
    subprocess.run([sys.executable, str(script), "--into", str(models)], check=True)
    return models


@pytest.fixture(scope="session")
def triton_server(installation, tmp_path_factory, server_logs) -> Iterator[StartServer]:
    """A function that starts a server on a model repository, or returns the one that serves it.

    `triton_server(repository)`, `triton_server(repository, environment={…}, arguments=(…))`. Ports
    are free ones, the log is attached to failures, and at the end nothing of any server is left.
    """
    running: dict[ServerOptions | str, TritonServer] = {}

    def start(repository: Path, **fields: object) -> TritonServer:
        key = repr((repository.resolve(), sorted(fields.items())))
        if key not in running:
            log = tmp_path_factory.mktemp("log") / "server.log"
            options = ServerOptions(
                repositories=(repository,),
                log_file=log,
                **{"exit_timeout_s": EXIT_TIMEOUT_S, **fields},
            )
            server = TritonServer(installation, options)
            server.start()
            server_logs[f"the server of {repository}"] = log
            running[key] = server
        return running[key]

    yield start
    server_logs.clear()
    for server in running.values():
        stop_without_a_trace(server)


def stop_without_a_trace(server: TritonServer) -> None:
    """Stop a server and fail if a process, a folder or a shared-memory region of it is left."""
    directory = server.directory
    server.stop()
    assert processes_of(directory.run) == []
    assert shared_memory_of(directory.shm_prefix) == []
    assert not directory.path.exists()
