"""Results for people and for programs: a table, a line of JSON per result, a plot."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.results import CEILING, Result
from benchmarks.systems import ALL_OURS
from ge_tools.tritonserver.installation import find_server

__all__ = ["json_lines", "machine", "plot", "table"]

HEADER = (
    "in flight",
    "system",
    "layout",
    "req/s",
    "p50 ms",
    "p99 ms",
    "server",
    "client",
    "others",
)
ROOT = Path(__file__).resolve().parent.parent


def table(title: str, results: Iterable[Result]) -> str:
    """Return an aligned table of one mix's results.

    `server` and `client` are CPU seconds per 1000 requests; `others` is how many cores the rest of
    the machine used. For each of our systems that is there a column has its throughput divided by
    the line's.
    """
    results = list(results)
    names = [name for name in ALL_OURS if any(result.system == name for result in results)]
    ours = {
        (result.concurrency, result.system): result for result in results if result.system in names
    }
    lines: list[tuple[str, ...]] = [(*HEADER, *(f"{name} x" for name in names))]
    for result in results:
        ratios = (ours[result.concurrency, name].over(result) for name in names)
        lines.append((*_cells(result), *(f"{ratio:.2f}" for ratio in ratios)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join([title, *(_aligned(line, widths) for line in lines)])


def json_lines(results: Iterable[Result], context: Mapping[str, object]) -> str:
    """Return one JSON object per line: the result and where it was measured."""
    return "".join(json.dumps({**context, **asdict(result)}) + "\n" for result in results)


def machine() -> dict[str, object]:
    """Return what a result depends on besides our code, and the commit of that."""
    packages = ("onnxruntime", "torch", "numpy")
    return {
        "commit": _commit(),
        "cpu": _cpu_model(),
        "cores": len(_cpu_lines()),
        "python": platform.python_version(),
        "triton": find_server().version,
        **{name: importlib.metadata.version(name) for name in packages},
    }


def plot(title: str, results: Sequence[Result], path: Path) -> bool:
    """Draw throughput by concurrency, a panel per mix; False if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    mixes = list(dict.fromkeys(result.mix for result in results))
    figure = Figure(figsize=(5.5 * len(mixes), 4), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(1, len(mixes), squeeze=False)[0]
    for axis, mix in zip(axes, mixes, strict=True):
        here = [result for result in results if result.mix == mix]
        for system in dict.fromkeys(result.system for result in here):
            points = [(r.concurrency, r.throughput) for r in here if r.system == system]
            style = "--" if system == CEILING else "o-"
            axis.plot(*zip(*points, strict=True), style, label=system)
        axis.set(title=mix, xlabel="requests in flight", ylabel="requests/s", xscale="log")
        ticks = sorted({result.concurrency for result in here})
        axis.set_xticks(ticks, map(str, ticks))
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=120)
    return True


def _cells(result: Result) -> tuple[str, ...]:
    return (
        str(result.concurrency),
        result.system,
        result.layout,
        f"{result.throughput:.0f}",
        _milliseconds(result.p50_ms),
        _milliseconds(result.p99_ms),
        f"{result.server_cpu_s:.2f}",
        f"{result.client_cpu_s:.2f}",
        f"{result.others_cpu:.2f}",
    )


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Text to the left, numbers to the right."""
    columns = (
        cell.ljust(width) if index in (1, 2) else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(columns).rstrip()


def _commit() -> str:
    """Return the commit, with a + if files differ from it; "" outside a repository."""
    command = ("git", "describe", "--always", "--dirty=+", "--exclude=*")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _cpu_lines() -> list[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return [line for line in lines if line.startswith("model name")]


def _cpu_model() -> str:
    names = _cpu_lines()
    return names[0].partition(":")[2].strip() if names else platform.machine()
