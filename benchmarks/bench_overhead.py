"""What a request costs beside its computing: models that compute nothing, on the real server.

`python -m benchmarks.bench_overhead` compares a plain Python model with our backend, whose executor
is a process of its own or inside the stub. They take turns. At one request in flight the difference
is what our way adds to a request; below, where it goes, from our own metrics.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.client import LoadProcess
from benchmarks.encoder.mixes import MIXES, draw
from benchmarks.harness.cpu import roles_of
from benchmarks.harness.figures import percentile
from benchmarks.load import Order, Report
from benchmarks.pbtxt import parameter_lines
from benchmarks.pool import Pool, save_pools
from ge_tools.tritonserver.directory import processes_of
from ge_tools.tritonserver.installation import find_server
from ge_tools.tritonserver.options import ServerOptions
from ge_tools.tritonserver.server import TritonServer
from ge_tools.watch.readings import Reading, change
from ge_tools.watch.scrape import scrape

__all__ = ["Cell", "lines", "main", "write_repository"]

MIX = "lognormal"
# The backend publishes its metrics four times a second.
PUBLISHED_S = 0.4
RIVAL = "nothing"
# Our parameters by model.
OURS: Mapping[str, Mapping[str, str]] = {"ge": {}, "ge_inline": {"executor": "inline"}}
PARTS = ("read", "plan", "stage", "wait", "queue", "run", "split")
CONFIG = """\
backend: "{backend}"
max_batch_size: 32
input [ {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }} ]
output [ {{ name: "sentence_embedding" data_type: TYPE_FP32 dims: [ 384 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
dynamic_batching {{ }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One model at so many requests in flight, over all windows.

    Attributes:
        requests_per_s: median of the windows.
        p50_ms: the least median of a window: what others do can only lengthen it.
        server_ms: CPU milliseconds of the server's processes per request.
        parts_us: of ours, microseconds per request by part.
    """

    model: str
    concurrency: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    server_ms: float
    parts_us: Mapping[str, float]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench_overhead", description=__doc__)
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=1.0, help="seconds per model and round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        folder = Path(temporary)
        write_repository(folder / "models")
        rows = tuple(draw(MIXES[MIX], 256, 1))
        pool = Pool(rows=rows, answers={0: np.zeros(384, np.float32)}, tolerance=0.0)
        save_pools({MIX: pool}, folder / "pools.npz")
        settings = ServerOptions(
            repositories=(folder / "models",),
            log_file=folder / "server.log",
            environment={"GE_CACHE_DIR": "off", "GE_DEVICE": "null"},
        )
        with (
            TritonServer(find_server(), settings) as server,
            LoadProcess(folder / "pools.npz", "http", server.http) as load,
        ):
            cells = _measured(server, load, options)
    print("\n".join(lines(cells)))
    for cell in cells:
        print(json.dumps({"bench": "overhead", **{n: getattr(cell, n) for n in cell.__slots__}}))


def write_repository(repository: Path) -> None:
    """Write the plain model, and ours."""
    for name in (RIVAL, *OURS):
        version = repository / name / "1"
        version.mkdir(parents=True)
        config = CONFIG.format(backend="python" if name == RIVAL else "ge")
        if name == RIVAL:
            shutil.copy(Path(__file__).parent / "rivals" / f"{RIVAL}.py", version / "model.py")
        else:
            (version / "model.null").write_text(json.dumps(_graph()))
            config += parameter_lines({"buckets.sequence": "16,64,256", **OURS[name]})
        (version.parent / "config.pbtxt").write_text(config)


def lines(cells: Sequence[Cell]) -> list[str]:
    """Return two tables: times beside the plain model's, and where ours go."""
    head = f"{'in flight':>9}  {'model':10}{'req/s':>9}{'p50 ms':>9}{'p99 ms':>9}"
    found = [f"{head}{'more ms':>9}{'CPU ms':>9}"]
    plain = {cell.concurrency: cell.p50_ms for cell in cells if cell.model == RIVAL}
    found += [
        f"{cell.concurrency:>9}  {cell.model:10}{cell.requests_per_s:>9.0f}{cell.p50_ms:>9.3f}"
        f"{cell.p99_ms:>9.2f}{cell.p50_ms - plain[cell.concurrency]:>9.3f}{cell.server_ms:>9.3f}"
        for cell in cells
    ]
    found += ["", "microseconds per request"]
    found.append(f"{'in flight':>9}  {'model':10}" + "".join(f"{part:>8}" for part in PARTS))
    found += [
        f"{cell.concurrency:>9}  {cell.model:10}"
        + "".join(f"{cell.parts_us[part]:>8.0f}" for part in PARTS)
        for cell in cells
        if cell.parts_us
    ]
    return found


def _graph() -> dict[str, object]:
    axes = ["batch", "sequence"]
    given = [{"name": n, "dtype": "INT64", "dims": axes} for n in ("input_ids", "attention_mask")]
    return {
        "inputs": given,
        "outputs": [{"name": "sentence_embedding", "dtype": "FP32", "dims": ["batch", 384]}],
    }


def _measured(server: TritonServer, load: LoadProcess, options: argparse.Namespace) -> list[Cell]:
    roles = roles_of(processes_of(server.directory.run))
    named = {str(pid): role for pid, role in roles.items()}
    order = random.Random(1)
    cells = []
    for concurrency in options.concurrency:
        reports: dict[str, list[Report]] = {RIVAL: [], **{name: [] for name in OURS}}
        before = _reading(server)
        for _ in range(options.rounds):
            for model in order.sample(list(reports), len(reports)):
                window = Order(
                    model=model,
                    mix=MIX,
                    concurrency=concurrency,
                    offset=0,
                    settle_s=0.2,
                    measure_s=options.window,
                    roles=named,
                )
                reports[model].append(load.measure(window))
        after = _reading(server)
        cells += [
            _cell(model, concurrency, found, before, after) for model, found in reports.items()
        ]
    return cells


def _reading(server: TritonServer) -> Reading:
    time.sleep(PUBLISHED_S)
    return scrape(server.metrics)


def _cell(
    model: str, concurrency: int, reports: Sequence[Report], before: Reading, after: Reading
) -> Cell:
    requests = change(before, after, "ge_requests_total", model=model)
    roles = [role for role in reports[0].cpu_s if role not in {"client", "others"}]
    used_s = sum(report.cpu_s[role] for report in reports for role in roles)
    parts = {part: change(before, after, f"ge_{part}_seconds_total", model=model) for part in PARTS}
    return Cell(
        model=model,
        concurrency=concurrency,
        requests_per_s=statistics.median(report.throughput for report in reports),
        p50_ms=min(percentile(report.latencies_ms, 50) for report in reports),
        p99_ms=min(percentile(report.latencies_ms, 99) for report in reports),
        server_ms=1e3 * used_s / sum(report.requests for report in reports),
        parts_us={part: 1e6 * value / requests for part, value in parts.items()}
        if requests
        else {},
    )


if __name__ == "__main__":
    main()
