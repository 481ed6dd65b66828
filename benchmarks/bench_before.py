"""This tree against an earlier commit of itself, on two real servers that take turns.

Each side has its own server, started from its own tree, with the same encoder; texts come one per
request, in short windows that alternate, over several rounds. Ratios are taken within a round, so
that whatever else the machine does hits both. For whoever changes how requests are served.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.client import BenchmarkError, LoadProcess
from benchmarks.encoder.mixes import MIXES
from benchmarks.harness.cpu import roles_of
from benchmarks.harness.figures import median_ratio, percentile
from benchmarks.harness.report import machine
from benchmarks.load import Order, Report
from benchmarks.rivals.forward import ENGINES
from benchmarks.served import POOL_ROWS, Traffic, make_traffic
from benchmarks.systems import OURS, UNASKED, System, write_repository
from ge_tools.tritonserver.api import ServerApi
from ge_tools.tritonserver.directory import processes_of
from ge_tools.tritonserver.options import free_ports

__all__ = ["AFTER", "BEFORE", "Window", "lines", "main"]

BEFORE, AFTER = "before", "after"
ROOT = Path(__file__).resolve().parent.parent
START_S = 300
SETTLE_S = 0.4
MIX = "lognormal"
SERVE = "import sys; from ge_tools.main import main; sys.exit(main())"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one side did in one short time."""

    side: str
    concurrency: int
    round_number: int
    per_s: float
    p99_ms: float
    cpu_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """A running server of one tree, and what loads it."""

    name: str
    model: str
    load: LoadProcess
    roles: Mapping[str, str]

    def measure(self, concurrency: int, round_number: int, seconds: float) -> Window:
        report = self.load.measure(
            Order(
                model=self.model,
                mix=MIX,
                concurrency=concurrency,
                offset=37 * round_number % POOL_ROWS,
                settle_s=SETTLE_S,
                measure_s=seconds,
                roles=self.roles,
            )
        )
        return Window(
            side=self.name,
            concurrency=concurrency,
            round_number=round_number,
            per_s=report.throughput,
            p99_ms=percentile(report.latencies_ms, 99),
            cpu_ms=1000 * _served_s(report) / report.requests,
        )


def main() -> None:
    """Run it and print the table."""
    options = _parse(sys.argv[1:])
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ge-before-")))
        trees = {BEFORE: stack.enter_context(_checked_out(options.commit, folder)), AFTER: ROOT}
        traffic = make_traffic(options.engine, [MIX], options.seed, folder)
        system = System(name=options.system, instances=options.instances)
        write_repository(folder / "models", (system,), options.engine, traffic.encoder)
        sides = [
            stack.enter_context(_served(name, tree, system.model, traffic, folder))
            for name, tree in trees.items()
        ]
        windows = list(_windows(sides, options))
    served = f"{options.system}, {options.engine}, {MIXES[MIX].help}"
    print(f"\n{served}; {options.commit} before, this tree after")
    print("\n".join(lines(windows)))


def lines(windows: Sequence[Window]) -> Iterator[str]:
    """Yield the table: medians over the rounds, and medians of each round's after / before."""
    yield (
        f"{'in flight':>9} {'before req/s':>13} {'after req/s':>12} {'throughput x':>13} "
        f"{'p99 x':>7} {'cpu x':>7}"
    )
    for concurrency in dict.fromkeys(window.concurrency for window in windows):
        here = [window for window in windows if window.concurrency == concurrency]
        before = {w.round_number: w for w in here if w.side == BEFORE}
        after = {w.round_number: w for w in here if w.side == AFTER}
        throughput, p99, cpu = (
            _ratio(before, after, figure)
            for figure in (lambda w: w.per_s, lambda w: w.p99_ms, lambda w: w.cpu_ms)
        )
        yield (
            f"{concurrency:>9} {statistics.median(w.per_s for w in before.values()):>13.1f} "
            f"{statistics.median(w.per_s for w in after.values()):>12.1f} "
            f"{throughput:>13.2f} {p99:>7.2f} {cpu:>7.2f}"
        )


def _ratio(
    before: Mapping[int, Window], after: Mapping[int, Window], figure: Callable[[Window], float]
) -> float:
    return median_ratio(
        {number: figure(window) for number, window in after.items()},
        {number: figure(window) for number, window in before.items()},
    )


def _windows(sides: Sequence[_Side], options: argparse.Namespace) -> Iterator[Window]:
    for number in range(options.rounds):
        for concurrency in options.concurrency:
            for side in sides if number % 2 else sides[::-1]:
                yield side.measure(concurrency, number, options.window)
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)


def _served_s(report: Report) -> float:
    """Return the CPU seconds of the server's own processes."""
    return sum(report.cpu_s.get(role, 0.0) for role in ("host", "stub", "executor"))


@contextmanager
def _checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """Have a commit in a work tree of its own while the block runs."""
    tree = folder / "tree"
    git = ("git", "-C", str(ROOT), "worktree")
    subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
    try:
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True)


@contextmanager
def _served(name: str, tree: Path, model: str, traffic: Traffic, folder: Path) -> Iterator[_Side]:
    """Serve a model with the backend of one tree, by this interpreter and its packages."""
    http, grpc, metrics = free_ports(3)
    # Costs are measured anew: what one side keeps is not for the other.
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "backend" / "ge"),
        "GE_CACHE_DIR": "off",
        "GE_WARMUP": "on",
    }
    command = [
        *(sys.executable, "-c", SERVE, "serve", f"--model-repository={folder / 'models'}"),
        *(f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"),
        f"--log-file={folder / f'{name}.log'}",
    ]
    # Elsewhere than here: the working directory comes first on the path of `-c`.
    with subprocess.Popen(command, env=environment, cwd=folder) as server:
        try:
            _wait(server, http)
            with LoadProcess(traffic.pools, "http", f"127.0.0.1:{http}") as load:
                roles = {str(pid): role for pid, role in roles_of(_processes(server.pid)).items()}
                yield _Side(name=name, model=model, load=load, roles=roles)
        finally:
            server.terminate()


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    api = ServerApi("127.0.0.1", port)
    for _ in range(START_S):
        if server.poll() is not None:
            raise BenchmarkError(f"the server ended with status {server.returncode}")
        if api.is_ready():
            return
        time.sleep(1)
    raise BenchmarkError(f"the server was not ready after {START_S} s")


def _processes(pid: int) -> list[int]:
    """Return the server's processes: those with the runtime folder that its child names."""
    for child in psutil.Process(pid).children(recursive=True):
        folder = child.environ().get("GE_RUNTIME_DIR")
        if folder:
            return processes_of(Path(folder))
    return []


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_before", description=__doc__)
    parser.add_argument("commit", help="whatever git knows, such as HEAD~20 or v0.1")
    parser.add_argument("--engine", choices=tuple(ENGINES), default="onnx")
    parser.add_argument("--system", choices=UNASKED, default=OURS)
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--window", type=float, default=2.0, help="seconds per side and round")
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
