"""Speed and accuracy of the real encoder per engine and precision, without a server.

`python -m tools.probes.bench_precision` prints the table of docs/precision.md and one JSON line per
row. Differences are against the engine's own result in original precision, on real sentences.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
from demo.encoder import INPUTS, OUTPUT, load_tokenizer, prepare, tokenise
from demo.sentences import PAGE
from rich.console import Console
from rich.table import Table

from ge_backend.device.base import Graph, GraphSource, open_device
from ge_backend.tensors import Array

ROWS = 8
LENGTHS = (24, 128)
REPEATS = 7


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    console = Console()
    encoder = prepare(Path(".cache/encoder"), console)
    device = open_device("cpu")
    texts = tokenise([sentence.text for sentence in PAGE], load_tokenizer())
    table = Table(title=f"{ROWS} rows, one thread per run")
    for column in ("file", "precision", *(f"ms at {n} tokens" for n in LENGTHS), "max difference"):
        table.add_column(column, justify="right" if column.startswith("m") else "left")
    truths: dict[str, Array] = {}
    for path, precision in (
        (encoder.onnx, "origin"),
        (encoder.program, "origin"),
        (encoder.program, "bf16"),
        (encoder.program, "fp16"),
    ):
        graph = device.load(GraphSource.of(path, precision=precision, threads=1))
        embeddings = np.concatenate([_embed(graph, text) for text in texts])
        truth = truths.setdefault(path.name, embeddings)
        times = [_milliseconds(graph, length) for length in LENGTHS]
        difference = float(np.abs(embeddings - truth).max())
        row = {"file": path.name, "precision": precision, "ms": times, "difference": difference}
        print(json.dumps(row))
        shown = [f"{value:.1f}" for value in times]
        table.add_row(path.name, precision, *shown, f"{difference:.1e}")
        graph.close()
    console.print(table)


def _embed(graph: Graph, ids: Array) -> Array:
    feeds = dict(zip(INPUTS, (ids.reshape(1, -1), np.ones((1, ids.size), np.int64)), strict=True))
    return graph.run(feeds, {}, exclusive=False)[OUTPUT]


def _milliseconds(graph: Graph, length: int) -> float:
    ids = np.random.default_rng(1).integers(1000, 2000, (ROWS, length))
    feeds = dict(zip(INPUTS, (ids, np.ones_like(ids)), strict=True))
    times: list[float] = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        graph.run(feeds, {}, exclusive=False)
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
