"""Cells for people and for programs: a table, a line of JSON per cell, a plot."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.harness.cells import Cell
from ge_tools.tritonserver.installation import find_server

__all__ = ["aligned", "commit", "json_lines", "machine", "plot", "table", "write"]

ROOT = Path(__file__).resolve().parents[2]
# Heading -> what stands there; a column in which nothing stands is left out.
COLUMNS: Mapping[str, Callable[[Cell], str]] = {
    "load": lambda cell: cell.load.label,
    "system": lambda cell: cell.system.name,
    "layout": lambda cell: cell.system.layout,
    "req/s": lambda cell: f"{cell.per_s:.0f}",
    "p50 ms": lambda cell: f"{cell.p50_ms:.2f}",
    "p99 ms": lambda cell: f"{cell.p99_ms:.2f}",
    "max ms": lambda cell: f"{cell.most_ms:.0f}",
    "CPU ms": lambda cell: f"{cell.server_ms:.3f}",
    "MiB": lambda cell: _number(cell.memory_mib, ".0f"),
    "x best": lambda cell: _number(cell.best_x, ".2f"),
    "p99 x": lambda cell: _number(cell.p99_x, ".2f"),
    "CPU x": lambda cell: _number(cell.cpu_x, ".2f"),
    "bytes": lambda cell: f"{cell.moved_bytes:.0f}",
    "client": lambda cell: f"{cell.client_share:.3f}",
    "late ms": lambda cell: "" if cell.load.in_flight else f"{cell.late_ms:.1f}",
    "refused/s": lambda cell: f"{cell.refused:.0f}" if cell.refused else "",
    "others": lambda cell: f"{cell.others:.2f}",
}


def table(found: Sequence[Cell]) -> str:
    """Return an aligned table, a line per cell.

    `CPU ms` is of all the server's processes per request; `MiB` of a server with that system alone;
    `x best` is times the best rival's requests per second; `p99 x` is by the lowest p99 of a rival,
    `CPU x` by the best rival's; `bytes` are sent and received per request;
    `client` and `others` are cores that the load generator and the rest of the machine used;
    `late ms` is how late the load generator itself sent, p99.
    """
    rows = [[say(cell) for say in COLUMNS.values()] for cell in found]
    kept = [at for at in range(len(COLUMNS)) if any(row[at] for row in rows)]
    names = list(COLUMNS)
    return aligned([[names[at] for at in kept], *([row[at] for at in kept] for row in rows)])


def aligned(rows: Sequence[Sequence[str]], left: Sequence[str] = ("system", "layout")) -> str:
    """Return rows as columns, the first being the heading: numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust if name in left else str.rjust for name in rows[0]]
    return "\n".join(
        "  ".join(
            side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)
        ).rstrip()
        for row in rows
    )


def json_lines(found: Iterable[Cell], context: Mapping[str, object]) -> str:
    """Return one JSON object per line: the cell and where it was measured."""
    return "".join(json.dumps({**context, **_values(cell)}) + "\n" for cell in found)


def _values(cell: Cell) -> dict[str, object]:
    skipped = {"load", "system"}
    values = {name: getattr(cell, name) for name in Cell.__slots__ if name not in skipped}
    return {
        "traffic": cell.load.traffic,
        "in_flight": cell.load.in_flight,
        "rate": cell.load.rate,
        "system": cell.system.name,
        "layout": cell.system.layout,
        "ours": cell.system.ours,
        **values,
    }


def write(name: str, found: Sequence[Cell], context: Mapping[str, object], folder: Path) -> None:
    """Write `name.jsonl` and, where matplotlib is installed, `name.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    path.write_text(json_lines(found, {"benchmark": name, **context}))
    print(f"wrote {path}", file=sys.stderr)
    if plot(name, found, path.with_suffix(".png")):
        print(f"wrote {path.with_suffix('.png')}", file=sys.stderr)


def plot(title: str, found: Sequence[Cell], path: Path) -> bool:
    """Draw requests per second by requests in flight, a panel per traffic; False if it cannot."""
    closed = [cell for cell in found if cell.load.in_flight]
    if importlib.util.find_spec("matplotlib") is None or not closed:
        return False
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    kinds = list(dict.fromkeys(cell.load.traffic for cell in closed))
    figure = Figure(figsize=(5.5 * len(kinds), 4), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(1, len(kinds), squeeze=False)[0]
    for axis, kind in zip(axes, kinds, strict=True):
        here = [cell for cell in closed if cell.load.traffic == kind]
        for name, ours in dict.fromkeys((cell.system.name, cell.system.ours) for cell in here):
            points = [(c.load.in_flight, c.per_s) for c in here if c.system.name == name]
            axis.plot(*zip(*points, strict=True), "o-" if ours else "x--", label=name)
        axis.set(title=kind, xlabel="in flight", ylabel="per second", xscale="log")
        ticks = sorted({cell.load.in_flight for cell in here})
        axis.set_xticks(ticks, map(str, ticks))
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=120)
    return True


def machine() -> dict[str, object]:
    """Return what a result depends on besides our code, and the commit of that."""
    packages = ("onnxruntime", "openvino", "torch", "numpy")
    return {
        "commit": commit(),
        "cpu": _cpu_model(),
        "cores": len(_cpu_lines()),
        "python": platform.python_version(),
        "triton": find_server().version,
        **{name: found for name in packages if (found := _version(name))},
    }


def commit(tree: Path = ROOT) -> str:
    """Return a tree's commit, with a + if files differ from it; "" outside a repository."""
    command = ("git", "describe", "--always", "--dirty=+", "--exclude=*")
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _cpu_lines() -> list[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return [line for line in lines if line.startswith("model name")]


def _cpu_model() -> str:
    names = _cpu_lines()
    return names[0].partition(":")[2].strip() if names else platform.machine()
