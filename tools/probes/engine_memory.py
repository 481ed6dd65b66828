"""What one graph of the real encoder takes of memory on a CPU, engine by engine, without a server.

Each engine is in a process of its own, with one thread per run and no wide session. MiB are PSS, of
which each stage has all that came before it: the engine imported, the file loaded, its buckets
prepared, each bucket run by two threads at once.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from benchmarks.harness.memory import read_pss
from benchmarks.harness.report import aligned
from demo.encoder import prepare
from rich.console import Console

from ge_backend.device.base import CompiledAhead, GraphSource, open_device
from ge_backend.device.machine.host_memory import give_back_freed

__all__ = ["BUCKETS", "main", "table"]

ENGINES = ("onnxruntime", "openvino")
STAGES = ("imported", "loaded", "prepared", "run")
# As plans have them: no more tokens at once than this, which bounds what runs take for themselves.
MOST = 512
ROWS, LENGTHS = (1, 2, 4, 8, 16), (16, 32, 64, 128, 256)
BUCKETS = [(rows, length) for rows in ROWS for length in LENGTHS if rows * length <= MOST]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="engine_memory", description=__doc__)
    parser.add_argument("--bodies", type=int, default=None, help="MAX_BODIES of OpenVINO's graph")
    bodies = parser.parse_args().bodies
    path = prepare(Path(".cache/encoder"), Console(stderr=True)).onnx
    found = {}
    for engine in ENGINES:
        with multiprocessing.get_context("spawn").Pool(1) as process:
            found[engine] = process.apply(measured, (engine, path, bodies))
    print(table(found))


def measured(engine: str, path: Path, bodies: int | None) -> list[float]:
    """Return the MiB of this process after each of `STAGES`."""
    return [_mib() for _ in _stages(engine, path, bodies)]


def table(found: dict[str, list[float]]) -> str:
    """Return a line per engine, with what it has as a multiple of the first one's in the end."""
    last = next(iter(found.values()))[-1]
    rows = [["engine", *STAGES, "x"]]
    for engine, sizes in found.items():
        rows.append([engine, *(f"{size:.0f}" for size in sizes), f"{sizes[-1] / last:.2f}"])
    return aligned(rows, left=("engine",))


def _stages(engine: str, path: Path, bodies: int | None) -> Iterator[None]:
    device = open_device("cpu")
    if engine == "openvino":
        from ge_backend.engines.ov import graph as module  # noqa: PLC0415 - in its process only

        module.MAX_BODIES = module.MAX_BODIES if bodies is None else bodies
    else:
        import onnxruntime  # noqa: F401, PLC0415 - in its process only
    yield
    graph = device.load(GraphSource.of(path, engine=engine, threads=1))
    yield
    names = [spec.name for spec in graph.signature.inputs]
    if isinstance(graph, CompiledAhead):
        graph.compile([dict.fromkeys(names, bucket) for bucket in BUCKETS])
    for bucket in BUCKETS:
        graph.prepare({name: np.ones(bucket, np.int64) for name in names})
    yield
    with ThreadPoolExecutor(2) as threads:
        for bucket in BUCKETS:
            given = {name: np.ones(bucket, np.int64) for name in names}
            list(threads.map(lambda _, g=given: graph.run(g, {}, exclusive=False), range(4)))
    yield


def _mib() -> float:
    give_back_freed()
    return read_pss(Path("/proc/self/smaps_rollup").read_text()) / (1 << 20)


if __name__ == "__main__":
    main()
