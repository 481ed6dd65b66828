"""Real servers for a comparison: of this tree, and of an earlier commit of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from benchmarks.harness.client import BenchmarkError
from benchmarks.harness.cpu import roles_of
from benchmarks.harness.memory import memory_by_role
from benchmarks.harness.report import ROOT
from benchmarks.harness.turns import System
from ge_tools.tritonserver.api import ServerApi
from ge_tools.tritonserver.directory import processes_of
from ge_tools.tritonserver.installation import find_server
from ge_tools.tritonserver.options import ServerOptions, free_ports
from ge_tools.tritonserver.server import TritonServer

__all__ = ["FRESH", "Running", "checked_out", "entry", "serve", "serve_tree"]

# Costs are measured anew, and while no other model loads and keeps the cores busy.
FRESH = {"GE_CACHE_DIR": "off", "GE_WARMUP": "on"}
START_S = 600
SERVE = "import sys; from {module} import {function}; sys.exit({function}())"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that is ready.

    Attributes:
        http, grpc: `host:port`.
        metrics: the URL of its metrics.
        run: its runtime folder, by which its processes are found.
        log: what it says.
    """

    http: str
    grpc: str
    metrics: str
    run: Path
    log: Path

    def systems(self, named: Sequence[System]) -> list[System]:
        """Return the systems as they run here."""
        roles = roles_of(processes_of(self.run))
        return [replace(system, address=self.http, roles=roles) for system in named]

    def memory_mib(self) -> float:
        """Return what its processes have; of pages that several map each has its share."""
        return sum(memory_by_role(processes_of(self.run)).values()) / (1 << 20)


@contextmanager
def serve(
    repository: Path, environment: Mapping[str, str] = FRESH, arguments: Sequence[str] = ()
) -> Iterator[Running]:
    """Serve a repository by this tree, with further flags; models load one after the other."""
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        options = ServerOptions(
            repositories=(repository,),
            log_file=Path(temporary) / "server.log",
            environment=environment,
            arguments=("--model-load-thread-count=1", *arguments),
        )
        with TritonServer(find_server(), options) as server:
            yield Running(
                http=server.http,
                grpc=server.grpc,
                metrics=server.metrics,
                run=server.directory.run,
                log=Path(temporary) / "server.log",
            )


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Have a commit in a work tree of its own while the block runs."""
    git = ("git", "-C", str(ROOT), "worktree")
    with tempfile.TemporaryDirectory(prefix="ge-before-") as temporary:
        tree = Path(temporary) / "tree"
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


@contextmanager
def serve_tree(
    tree: Path, repository: Path, environment: Mapping[str, str] = FRESH
) -> Iterator[Running]:
    """Serve a repository with the backend of one tree, by this interpreter and its packages."""
    http, grpc, metrics = free_ports(3)
    roots = [tree / folder for folder in ("backend/ge", "frontend", "tools")]
    path = os.pathsep.join(str(root) for root in roots if root.is_dir())
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        command = [
            *(sys.executable, "-c", entry(tree), "serve", f"--model-repository={repository}"),
            *(f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"),
            f"--log-file={temporary}/server.log",
        ]
        # Elsewhere than here: the working directory comes first on the path of `-c`.
        with subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path, **environment}, cwd=temporary
        ) as server:
            try:
                _wait(server, http)
                yield Running(
                    http=f"127.0.0.1:{http}",
                    grpc=f"127.0.0.1:{grpc}",
                    metrics=f"http://127.0.0.1:{metrics}/metrics",
                    run=_runtime_folder(server.pid),
                    log=Path(temporary) / "server.log",
                )
            finally:
                server.terminate()


def entry(tree: Path) -> str:
    """Return the program of a tree's command; trees differ in where it lies."""
    named = re.search(
        r'^ge-backend = "(.+):(.+)"$', (tree / "pyproject.toml").read_text(), re.MULTILINE
    )
    if named is None:
        raise BenchmarkError(f"{tree}/pyproject.toml names no command ge-backend")
    return SERVE.format(module=named[1], function=named[2])


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    api = ServerApi("127.0.0.1", port)
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise BenchmarkError(f"the server ended with status {server.returncode}")
        if api.is_ready():
            return
        time.sleep(0.2)
    raise BenchmarkError(f"the server was not ready after {START_S} s")


def _runtime_folder(pid: int) -> Path:
    """Return the folder that the server's child names."""
    for child in psutil.Process(pid).children(recursive=True):
        if folder := child.environ().get("GE_RUNTIME_DIR"):
            return Path(folder)
    raise BenchmarkError(f"process {pid} has no child with GE_RUNTIME_DIR: is it a server of ours?")
