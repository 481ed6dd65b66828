"""What rows cost us as there are more of them, and more models: our own work, without a server.

`python -m tools.probes.bench_scale` opens models that compute nothing in one executor, and prints
tables and a line of JSON per measurement; `--plot FILE` draws them. Times are of the best of some
windows. The last table sets the time of planning against that of the runs that are planned.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from benchmarks.encoder.mixes import MIXES
from benchmarks.harness.memory import read_pss

from ge_backend.serving.batching.plan import Policy, plan
from ge_backend.serving.batching.request import Request
from ge_backend.shapes.buckets.costs import CostModel, DynamicCosts, StaticCosts
from ge_backend.shapes.buckets.grid import Bucket
from ge_backend.tensors import Array

from .bench_planner import LENGTHS, ROWS, accelerator
from .in_process import Local, open_local
from .scale_report import Models, Planner, Waiting, plot, tables

__all__ = ["main"]

MODELS = (1, 4, 16, 64)
WAITING = (1, 4, 16, 64, 256, 1000)
LENGTH = 32
# Near what one core takes for all-MiniLM-L6-v2.
RUN_NS, TOKEN_NS = 1_000_000, 120_000
PARAMETERS = {"buckets.rows": "1,8,32", "buckets.sequence": "16,32,64"}

Feed = Mapping[str, Array]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench_scale", description=__doc__)
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--window", type=float, default=0.2, help="seconds")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    models = list(_models(options.windows, options.window))
    waiting = list(_waiting(options.windows, options.window))
    planner = list(_planner(options.windows))
    print(tables(models, waiting, planner))
    everything: tuple[Models | Waiting | Planner, ...] = (*models, *waiting, *planner)
    for found in everything:
        print(json.dumps({"bench": f"scale {type(found).__name__.lower()}", **asdict(found)}))
    if options.plot is not None and plot(models, waiting, options.plot):
        print(f"wrote {options.plot}")


def _models(windows: int, seconds: float) -> Iterator[Models]:
    """Yield what a row costs with so many models in one executor, which take turns."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ge-", dir="/tmp")))
        opened: list[Local] = []
        for count in MODELS:
            while len(opened) < count:
                opened.append(stack.enter_context(_opened(folder, len(opened))))
            executor = opened[0].pipeline.fleet.sessions[0].executor_pid
            best = min(_turns(opened, seconds) for _ in range(windows))
            yield Models(
                count=count,
                row_us=best,
                stub_bytes=_pss(os.getpid()),
                executor_bytes=_pss(executor),
            )


def _waiting(windows: int, seconds: float) -> Iterator[Waiting]:
    """Yield what a row costs where so many requests come together."""
    with (
        tempfile.TemporaryDirectory(prefix="ge-", dir="/tmp") as name,
        _opened(Path(name), 0) as local,
    ):
        rows = MIXES["uniform"].lengths(np.random.default_rng(1), WAITING[-1]).clip(1, 64)
        batches = {count: [_feed(int(length)) for length in rows[:count]] for count in WAITING}
        best: dict[int, dict[str, float]] = {}
        for _ in range(windows):
            for count, batch in batches.items():
                found = _window(local, batch, seconds)
                if count not in best or found["row"] < best[count]["row"]:
                    best[count] = found
        for count, found in best.items():
            yield Waiting(
                count=count,
                row_us=found["row"],
                plan_us=found["plan"],
                stage_us=found["stage"],
                split_us=found["split"],
            )


def _planner(windows: int) -> Iterator[Planner]:
    """Yield how long plans take, and the runs that they are of."""
    buckets = [(rows, length) for rows in ROWS for length in LENGTHS]
    tables: Mapping[str, dict[Bucket, float]] = {
        "one CPU core": {b: RUN_NS + TOKEN_NS * b[0] * b[1] for b in buckets},
        "an accelerator": {b: accelerator(*b) for b in buckets},
    }
    for mix in MIXES.values():
        lengths = mix.lengths(np.random.default_rng(1), WAITING[-1])
        requests = [
            Request(index=i, rows=1, tensors={}, sizes=(int(length),))
            for i, length in enumerate(lengths)
        ]
        for device, table in tables.items():
            engines: Mapping[str, CostModel] = {
                "static shapes": StaticCosts(table),
                "any shape": DynamicCosts(table, ROWS[-1]),
            }
            for engine, costs in engines.items():
                plan_ns, run_ns = _planned(requests, costs, windows)
                yield Planner(
                    mix=mix.name,
                    device=device,
                    engine=engine,
                    rows=len(requests),
                    plan_ms=plan_ns / 1e6,
                    run_ms=run_ns / 1e6,
                )


def _planned(requests: Sequence[Request], costs: CostModel, times: int) -> tuple[float, float]:
    policy = Policy(axes=("length",), lanes=2)
    took: list[int] = []
    for _ in range(times + 1):  # lengths seen for the first time are looked up once
        started = time.perf_counter_ns()
        batch = plan(requests, costs, policy)
        took.append(time.perf_counter_ns() - started)
    return min(took[1:]), sum(sub_batch.cost_ns for sub_batch in batch.sub_batches)


@contextlib.contextmanager
def _opened(folder: Path, number: int) -> Iterator[Local]:
    """Open a model that computes nothing; all of this process share an executor."""
    model = folder / f"model_{number}" / "1" / "model.null"
    model.parent.mkdir(parents=True)
    axes = ["batch", "sequence"]
    given = [{"name": n, "dtype": "INT64", "dims": axes} for n in ("input_ids", "attention_mask")]
    result = {"name": "embedding", "dtype": "FP32", "dims": ["batch", 384]}
    model.write_text(json.dumps({"inputs": given, "outputs": [result]}))
    with open_local(model, device="null", rows=WAITING[-1], parameters=PARAMETERS) as local:
        yield local


def _turns(opened: Sequence[Local], seconds: float) -> float:
    """Return microseconds per row, each request for another model than the one before."""
    batch = [_feed(LENGTH)]
    for local in opened:
        local.run(batch)
    rows, started = 0, time.perf_counter()
    while time.perf_counter() < started + seconds or rows % len(opened):
        opened[rows % len(opened)].run(batch)
        rows += 1
    return 1e6 * (time.perf_counter() - started) / rows


def _window(local: Local, batch: Sequence[Feed], seconds: float) -> dict[str, float]:
    """Return microseconds per row, in all and by part."""
    local.run(batch)
    recorder = local.pipeline.recorder
    recorder.drain()
    rows, started = 0, time.perf_counter()
    while time.perf_counter() < started + seconds:
        local.run(batch)
        rows += len(batch)
    wall_s = time.perf_counter() - started
    parts = {name: value for (name, _), value in recorder.drain().items()}
    shown = {part: parts[f"ge_{part}_seconds_total"] for part in ("plan", "stage", "split")}
    return {name: 1e6 * value / rows for name, value in {"row": wall_s, **shown}.items()}


def _feed(length: int) -> Feed:
    return {"input_ids": np.ones((1, length), np.int64)}


def _pss(pid: int) -> int:
    return read_pss(Path(f"/proc/{pid}/smaps_rollup").read_text())


if __name__ == "__main__":
    main()
