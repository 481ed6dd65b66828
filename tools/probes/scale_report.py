"""What `bench_scale` found, as tables and as a plot. Pure."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Models", "Planner", "Waiting", "plot", "tables"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """So many models in one executor, all of one stub; PSS of both processes."""

    count: int
    row_us: float
    stub_bytes: int
    executor_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """So many requests that come together; microseconds per row, in all and by part."""

    count: int
    row_us: float
    plan_us: float
    stage_us: float
    split_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """A plan of so many rows, and how long its runs take one after another."""

    mix: str
    device: str
    engine: str
    rows: int
    plan_ms: float
    run_ms: float

    @property
    def share(self) -> float:
        """The plan's time per time of runs."""
        return self.plan_ms / self.run_ms


def tables(models: Sequence[Models], waiting: Sequence[Waiting], planner: Sequence[Planner]) -> str:
    """Return three tables."""
    lines = ["models in one executor, one request at a time"]
    lines.append(f"{'models':>8}{'us/row':>10}{'stub MiB':>12}{'executor MiB':>14}")
    for one in models:
        stub, executor = one.stub_bytes / MIB, one.executor_bytes / MIB
        lines.append(f"{one.count:>8}{one.row_us:>10.0f}{stub:>12.1f}{executor:>14.1f}")
    lines += ["", "requests that come together"]
    lines.append(f"{'waiting':>8}{'us/row':>10}{'plan':>8}{'stage':>8}{'split':>8}")
    lines += [
        f"{one.count:>8}{one.row_us:>10.1f}{one.plan_us:>8.1f}{one.stage_us:>8.1f}"
        f"{one.split_us:>8.1f}"
        for one in waiting
    ]
    lines += ["", f"planning of {planner[0].rows} rows" if planner else ""]
    lines.append(f"{'mix':12}{'device':16}{'engine':16}{'plan ms':>9}{'runs ms':>9}{'share':>8}")
    lines += [
        f"{one.mix:12}{one.device:16}{one.engine:16}{one.plan_ms:>9.1f}{one.run_ms:>9.0f}"
        f"{one.share:>8.2%}"
        for one in planner
    ]
    return "\n".join(lines)


def plot(models: Sequence[Models], waiting: Sequence[Waiting], path: Path) -> bool:
    """Draw a row's cost by models, by requests, and memory; False without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib as mpl  # noqa: PLC0415 - optional, and slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams["svg.hashsalt"] = "ge-backend"  # else each run gives other names
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    row, memory, batch = figure.subplots(1, 3)
    counts = [one.count for one in models]
    row.plot(counts, [one.row_us for one in models], "o-")
    row.set(xlabel="models in one executor", ylabel="µs per row, one at a time")
    memory.plot(counts, [one.executor_bytes / MIB for one in models], "o-", label="executor")
    memory.plot(counts, [one.stub_bytes / MIB for one in models], "o-", label="stub")
    memory.set(xlabel="models in one executor", ylabel="MiB (PSS)")
    memory.legend()
    several = [one.count for one in waiting]
    batch.plot(several, [one.row_us for one in waiting], "o-", label="in all")
    for part in ("plan", "stage", "split"):
        batch.plot(several, [getattr(one, f"{part}_us") for one in waiting], ".--", label=part)
    batch.set(xlabel="requests that come together", ylabel="µs per row", yscale="log")
    batch.legend()
    for axes, ticks in ((row, counts), (memory, counts), (batch, several)):
        axes.set_xscale("log")
        axes.set_xticks(ticks, list(map(str, ticks)))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    for axes in (row, memory):
        axes.set_ylim(bottom=0)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return True
