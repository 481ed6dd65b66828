"""Memory of several models and of several instances: our backend beside plain Python models.

`python -m benchmarks.bench_memory` starts the real server once per line and system, sends every
model the same requests, and prints a table and a line of JSON per measurement. Memory is that of
all processes of the server together.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from demo.encoder import prepare
from rich.console import Console

from benchmarks.harness.client import LoadProcess
from benchmarks.harness.compare import announce
from benchmarks.harness.memory import MemoryWatch
from benchmarks.harness.pool import Pool
from benchmarks.harness.report import ROOT
from benchmarks.harness.requests import Array, asked, connect, http_request
from benchmarks.harness.servers import Running, serve
from benchmarks.harness.turns import Load, System, one_window
from benchmarks.memory_report import Measured, by_role, markdown
from benchmarks.model_folder import write_model
from benchmarks.rivals.forward import ENGINES

__all__ = ["main"]

ENGINE = "onnx"
COUNTS = (1, 2, 4, 8)
# Rows and tokens of the requests to each model: the largest runs decide about scratch memory.
SHAPES = ((1, 16), (8, 256))
WINDOW_S = 2.0
TOLERANCE = 1e-4

_CONFIG = """\
backend: "{backend}"
max_batch_size: 8
input [ {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }} ]
output [ {{ name: "sentence_embedding" data_type: TYPE_FP32 dims: [ 384 ] }} ]
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One way to serve the encoder; each forward pass has one thread."""

    name: str
    backend: str
    parameters: Mapping[str, str]


_OURS = {"buckets.rows": "1,8", "buckets.sequence": "16,256", "threads": "1"}
SYSTEMS = (
    Backend(name="ge", backend="ge", parameters=_OURS),
    Backend(
        name="Python backend",
        backend="python",
        parameters={"engine": ENGINE, "threads": "1", "device": "cpu"},
    ),
)


def main() -> None:
    """Measure and print."""
    options = _parse(sys.argv[1:])
    context = announce()
    cases = [("models", count, 1) for count in options.counts]
    cases += [("instances", 1, count) for count in options.counts]
    found: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        model = Path(temporary) / ENGINES[ENGINE]
        shutil.copyfile(prepare(ROOT / ".cache" / "encoder", Console(stderr=True)).onnx, model)
        for what, models, instances in cases:
            for system in SYSTEMS:
                found.append(_measure(system, what, models, instances, model))
                print(json.dumps({**context, **asdict(found[-1])}), flush=True)
    print(markdown(found))
    print(by_role(found, SYSTEMS[0].name))


def _measure(system: Backend, what: str, models: int, instances: int, model: Path) -> Measured:
    """Start a server, send each model its requests, and return the memory that it took."""
    print(f"{system.name}: {models} models, {instances} instances", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="ge-bench-", dir=model.parent) as temporary:
        repository = Path(temporary) / "models"
        names = [f"encoder_{number}" for number in range(models)]
        for name in names:
            _write_model(repository / name, system, instances, model)
        with serve(repository) as server, MemoryWatch(server.run) as watch:
            _ask_all(server, names, instances)
    return Measured(
        system=system.name,
        what=what,
        count=max(models, instances),
        bytes_by_role=dict(watch.peak),
    )


def _write_model(folder: Path, system: Backend, instances: int, model: Path) -> None:
    """Write a model with a file of its own, that is: a link, so that the disk holds it once."""
    config = _CONFIG.format(backend=system.backend, instances=instances)
    code = ("one_forward", "forward") if system.backend == "python" else ()
    version = write_model(folder, config, system.parameters, code=code)
    os.link(model, version / model.name)


def _ask_all(server: Running, names: Sequence[str], instances: int) -> None:
    """Keep every instance of every model busy for a while; all have to answer as the first does."""
    jobs = [(name, shape) for shape in SHAPES for name in names]
    sent = [http_request(name, {"input_ids": _ids(shape)}) for name, shape in jobs]
    with connect(server.http) as sock:
        truth = {shape: asked(sock, sent[jobs.index((names[0], shape))]) for shape in SHAPES}
    answers = {
        at: truth[shape]["sentence_embedding"].reshape(-1) for at, (_, shape) in enumerate(jobs)
    }
    pool = Pool(scripts=tuple((request,) for request in sent), answers=answers, tolerance=TOLERANCE)
    load = Load(traffic="rows", in_flight=2 * max(len(names), instances))
    (everything,) = server.systems([System(name="all", model="all")])
    with LoadProcess({f"{everything.model}/{load.traffic}": pool}) as process:
        one_window(process, everything, load, WINDOW_S)


def _ids(shape: tuple[int, int]) -> Array:
    return np.random.default_rng(1).integers(1000, 20000, shape)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_memory", description=__doc__)
    parser.add_argument("--counts", nargs="+", type=int, default=list(COUNTS))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
