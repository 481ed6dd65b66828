"""The engines of the CPU against each other on the real encoder, without a server.

`python -m tools.probes.bench_engines` prints a table and one JSON line per engine. All engines run
the same buckets, one thread per run, in turn: each round runs every bucket once on every engine,
both in another order each time. Ratios are of sums of the shortest runs; where other programs share
the cores they say more than milliseconds.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
from demo.encoder import INPUTS, prepare
from rich.console import Console
from rich.table import Table

from ge_backend.device.base import CompiledAhead, Graph, GraphSource, open_device
from ge_backend.tensors import Array

__all__ = ["main"]

# Rows and tokens, as plans for log-normal lengths with median 24 have them.
SINGLE = ((1, 16), (1, 32), (1, 64), (1, 128))
BUCKETS = (*SINGLE, (2, 24), (4, 16), (4, 24), (4, 48), (8, 16), (8, 24))
SYSTEMS = {
    "onnxruntime": ("onnx", "origin", "onnxruntime"),
    "openvino": ("onnx", "origin", "openvino"),
    "torch": ("program", "origin", "torch"),
    "openvino, rows end to end": ("checkpoint", "origin", "openvino"),
    "torch, rows end to end": ("checkpoint", "origin", "transformers"),
    "openvino bf16": ("onnx", "bf16", "openvino"),
    "torch bf16": ("program", "bf16", "torch"),
    "openvino bf16, rows end to end": ("checkpoint", "bf16", "openvino"),
    "torch bf16, rows end to end": ("checkpoint", "bf16", "transformers"),
}

Bucket = tuple[int, int]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    console = Console()
    encoder = prepare(Path(".cache/encoder"), console)
    device = open_device("cpu")
    graphs: dict[str, Graph] = {}
    starts: dict[str, float] = {}
    for name, (file, precision, engine) in SYSTEMS.items():
        path = getattr(encoder, file)
        path = path / "config.json" if path.is_dir() else path
        started = time.perf_counter()
        graph = device.load(GraphSource.of(path, precision=precision, threads=1, engine=engine))
        if isinstance(graph, CompiledAhead):
            graph.compile([dict.fromkeys(INPUTS, bucket) for bucket in BUCKETS])
        for bucket in sorted(BUCKETS, reverse=True):
            graph.prepare(_feeds(bucket))
            graph.run(_feeds(bucket), {}, exclusive=False)
        starts[name], graphs[name] = time.perf_counter() - started, graph
    best = _best(graphs, rounds)
    table = Table(title=f"{len(BUCKETS)} buckets, one thread per run, {rounds} rounds")
    for column in ("engine", "all buckets, ms", "1x16", "8x24", "against onnxruntime", "load, s"):
        table.add_column(column, justify="right" if column != "engine" else "left")
    first = sum(best["onnxruntime"].values())
    for name, times in best.items():
        total = sum(times.values())
        row = {"engine": name, "ms": total, "ratio": first / total, "load_s": starts[name]}
        print(json.dumps(row))
        cells = (total, times[1, 16], times[8, 24])
        ratio = f"{first / total:.2f}x"
        table.add_row(name, *(f"{ms:.1f}" for ms in cells), ratio, f"{starts[name]:.1f}")
    console.print(table)
    for graph in graphs.values():
        graph.close()
    device.close()


def _best(graphs: dict[str, Graph], rounds: int) -> dict[str, dict[Bucket, float]]:
    """Return the milliseconds of the shortest run of each bucket on each engine."""
    best = {name: dict.fromkeys(BUCKETS, float("inf")) for name in graphs}
    chance = random.Random(1)
    for _ in range(rounds):
        for name in chance.sample(list(graphs), len(graphs)):
            for bucket in chance.sample(BUCKETS, len(BUCKETS)):
                feeds = _feeds(bucket)
                started = time.perf_counter()
                graphs[name].run(feeds, {}, exclusive=False)
                took = 1e3 * (time.perf_counter() - started)
                best[name][bucket] = min(best[name][bucket], took)
    return best


def _feeds(bucket: Bucket) -> dict[str, Array]:
    ids = np.random.default_rng(1).integers(1000, 2000, bucket)
    return dict(zip(INPUTS, (ids, np.ones_like(ids)), strict=True))


if __name__ == "__main__":
    main()
