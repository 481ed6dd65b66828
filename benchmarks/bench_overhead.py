"""What a request costs beside its computing: models that compute nothing, on the real server.

A plain Python model against our backend, whose executor is a process of its own or inside the stub.
At one request in flight the difference of the medians is what our way adds to a request; below the
table is where it goes, from our own metrics.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.encoder.mixes import MIXES, draw
from benchmarks.harness import compare
from benchmarks.harness.cells import cells
from benchmarks.harness.client import LoadProcess
from benchmarks.harness.pool import Pool
from benchmarks.harness.report import aligned, write
from benchmarks.harness.requests import http_request
from benchmarks.harness.servers import serve
from benchmarks.harness.turns import Load, System, Turn, take_turns
from benchmarks.model_folder import write_model
from ge_tools.watch.readings import Reading, change
from ge_tools.watch.scrape import scrape

__all__ = ["PARTS", "SYSTEMS", "main", "parts_us", "write_repository"]

MIX = "lognormal"
# The backend publishes its metrics every two seconds, where nothing was new before.
PUBLISHED_S = 2.5
RIVAL = "nothing"
# Our parameters by model.
OURS: Mapping[str, Mapping[str, str]] = {"ge": {}, "ge_inline": {"executor": "inline"}}
SYSTEMS = (
    System(name=RIVAL, model=RIVAL),
    *(System(name=name, model=name, ours=True) for name in OURS),
)
PARTS = ("read", "plan", "stage", "wait", "queue", "run", "split")
CONFIG = """\
backend: "{backend}"
max_batch_size: 32
input [ {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }} ]
output [ {{ name: "sentence_embedding" data_type: TYPE_FP32 dims: [ 384 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
dynamic_batching {{ }}
"""


def main() -> None:
    """Measure and print."""
    options = compare.parser("bench_overhead", __doc__, [1, 32]).parse_args(sys.argv[1:])
    context = compare.announce()
    rows = draw(MIXES[MIX], 256, options.seed)
    pools = {
        f"{system.model}/{MIX}": Pool(
            scripts=tuple((http_request(system.model, {"input_ids": row[None]}),) for row in rows)
        )
        for system in SYSTEMS
    }
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        write_repository(Path(temporary))
        environment = {"GE_CACHE_DIR": "off", "GE_DEVICE": "null"}
        with serve(Path(temporary), environment) as server, LoadProcess(pools) as process:
            systems = server.systems(SYSTEMS)
            turns: list[Turn] = []
            spent = []
            for in_flight in options.concurrency:
                before = _reading(server.metrics)
                load = Load(traffic=MIX, in_flight=in_flight)
                turns += take_turns(process, systems, [load], compare.pace_of(options))
                after = _reading(server.metrics)
                spent += [(in_flight, name, parts_us(before, after, name)) for name in OURS]
    found = cells(turns)
    compare.show("overhead", found, None)
    plain = {cell.load: cell.p50_ms for cell in found if cell.system.name == RIVAL}
    for cell in found:
        if cell.system.ours:
            more = cell.p50_ms - plain[cell.load]
            print(f"{cell.load.label} in flight: {cell.system.name} adds {more:.3f} ms to the p50")
    print(f"\nmicroseconds per request\n{_parts(spent)}")
    write("overhead", found, context, options.output)


def write_repository(repository: Path) -> None:
    """Write the plain model, and ours."""
    write_model(repository / RIVAL, CONFIG.format(backend="python"), code=[RIVAL])
    axes = ["batch", "sequence"]
    given = [{"name": n, "dtype": "INT64", "dims": axes} for n in ("input_ids", "attention_mask")]
    outputs = [{"name": "sentence_embedding", "dtype": "FP32", "dims": ["batch", 384]}]
    graph = {"inputs": given, "outputs": outputs}
    for name, parameters in OURS.items():
        of = {"buckets.sequence": "16,64,256", **parameters}
        write_model(repository / name, CONFIG.format(backend="ge"), of, graph=graph)


def parts_us(before: Reading, after: Reading, model: str) -> dict[str, float]:
    """Return microseconds per request by part, between two readings; none without requests."""
    requests = change(before, after, "ge_requests_total", model=model)
    spent = {part: change(before, after, f"ge_{part}_seconds_total", model=model) for part in PARTS}
    return {part: 1e6 * value / requests for part, value in spent.items()} if requests else {}


def _parts(spent: Sequence[tuple[int, str, Mapping[str, float]]]) -> str:
    rows = [
        [str(in_flight), name, *(f"{parts[part]:.0f}" for part in PARTS)]
        for in_flight, name, parts in spent
        if parts
    ]
    return aligned([["load", "system", *PARTS], *rows])


def _reading(url: str) -> Reading:
    time.sleep(PUBLISHED_S)
    return scrape(url)


if __name__ == "__main__":
    main()
