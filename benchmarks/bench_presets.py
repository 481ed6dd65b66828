"""What the presets do: one encoder in a plain configuration, and with each preset applied to it.

One server has all four as models. They take turns in short windows, in another order in each round,
and ratios are taken within a round. The loads: 1 and 32 requests in flight, and requests that come
at random, fewer and more than the plain configuration can answer. Memory is that of a server with
one of them alone, because models share an executor. With `--device null` runs only sleep, so that
the machine need not be quiet; threads and memory then mean nothing.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.client import LoadProcess
from benchmarks.encoder.mixes import MIXES
from benchmarks.harness.cpu import roles_of
from benchmarks.harness.figures import percentile
from benchmarks.harness.memory import MemoryWatch
from benchmarks.harness.report import machine
from benchmarks.load import Order, Report
from benchmarks.open_loop import offer
from benchmarks.pool import load_pools
from benchmarks.preset_report import PLAIN, Memory, Window, memory_lines, speed_lines
from benchmarks.rivals.forward import ENGINES
from benchmarks.served import Traffic, make_traffic
from benchmarks.sleeping import sleeping_traffic
from ge_backend.model.config.model_folder import read_folder
from ge_tools.model.applied import apply_settings
from ge_tools.model.changes import changes_of
from ge_tools.model.presets import PRESETS
from ge_tools.tritonserver.directory import processes_of
from ge_tools.tritonserver.installation import find_server
from ge_tools.tritonserver.options import ServerOptions
from ge_tools.tritonserver.server import TritonServer

__all__ = ["CONFIGS", "main", "write_model"]

ENGINE, MIX = "onnx", "lognormal"
CONFIGS = (PLAIN, *PRESETS)
IN_FLIGHT = (1, 32)
SETTLE_S = 0.4
CONFIG = """\
backend: "ge"
max_batch_size: 32
input [ { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "sentence_embedding" data_type: TYPE_FP32 dims: [ 384 ] } ]
dynamic_batching { }
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "buckets.rows" value { string_value: "1,4,16" } }
parameters { key: "buckets.sequence" value { string_value: "16,64,256" } }
"""
SLEEPS = "model.null"
NULL = 'parameters { key: "device" value { string_value: "null" } }\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rig:
    """A running server, the process that loads it, and the sequences."""

    server: TritonServer
    load: LoadProcess
    traffic: Traffic

    def closed(self, config: str, in_flight: int, offset: int, window_s: float) -> Report:
        """Keep so many requests in flight for so long."""
        roles = roles_of(processes_of(self.server.directory.run))
        order = Order(
            model=config,
            mix=MIX,
            concurrency=in_flight,
            offset=offset,
            settle_s=SETTLE_S,
            measure_s=window_s,
            roles={str(pid): role for pid, role in roles.items()},
        )
        return self.load.measure(order)


def main() -> None:
    """Measure and print both tables."""
    options = _parse(sys.argv[1:])
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    sleeps = options.device == "null"
    what = "runs that sleep" if sleeps else "all-MiniLM-L6-v2 on ONNX Runtime"
    print(f"{what}, {MIXES[MIX].help}")
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        folder = Path(temporary)
        if sleeps:
            traffic = sleeping_traffic(MIX, options.seed, folder)
        else:
            traffic = make_traffic(ENGINE, (MIX,), options.seed, folder)
        windows = list(_speed(traffic, folder, options))
        print("\n".join(speed_lines(windows)))
        noise = max(window.others_cpu for window in windows)
        print(f"other programs used up to {noise:.2f} cores\n", flush=True)
        if not sleeps:
            print("\n".join(memory_lines(list(_memory(traffic, folder, options)))))


def write_model(folder: Path, config: str, files: Mapping[str, Path]) -> None:
    """Write a model in its plain configuration, and apply the preset of that name."""
    version = folder / "1"
    version.mkdir(parents=True)
    file = SLEEPS if SLEEPS in files else ENGINES[ENGINE]
    (version / file).symlink_to(files[file].resolve())
    (folder / "config.pbtxt").write_text(CONFIG + (NULL if file == SLEEPS else ""))
    if config != PLAIN:
        read = read_folder(folder)
        changes = changes_of(PRESETS[config], read.document, read.config({}))
        apply_settings(read.config_file, changes.settings)


def _speed(traffic: Traffic, folder: Path, options: argparse.Namespace) -> Iterator[Window]:
    """Yield a window per configuration, load and round."""
    # Costs that one model's warm-up has measured are those of the next with equal threads.
    server = _server(CONFIGS, traffic, folder / "speed", cache=str(folder / "cache"))
    with server, LoadProcess(traffic.pools, "http", server.http) as load:
        rig = _Rig(server=server, load=load, traffic=traffic)
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
            yield from _round(rig, number, options)


def _round(rig: _Rig, number: int, options: argparse.Namespace) -> Iterator[Window]:
    order = random.Random(options.seed + number)
    offset = order.randrange(1 << 16)
    plain_rate = 0.0
    for in_flight in IN_FLIGHT:
        for config in order.sample(CONFIGS, len(CONFIGS)):
            report = rig.closed(config, in_flight, offset, options.window)
            if config == PLAIN:
                plain_rate = report.throughput
            yield Window(
                config=config,
                load=f"{in_flight} in flight",
                round_number=number,
                answers=report.throughput,
                p50_ms=percentile(report.latencies_ms, 50),
                p99_ms=percentile(report.latencies_ms, 99),
                refused=0.0,
                others_cpu=report.cpu_s["others"] / report.wall_s,
            )
    for share in options.offered:
        for config in order.sample(CONFIGS, len(CONFIGS)):
            yield _offered(rig, config, number, share, plain_rate, options)


def _offered(
    rig: _Rig,
    config: str,
    number: int,
    share: float,
    plain_rate: float,
    options: argparse.Namespace,
) -> Window:
    rows = load_pools(rig.traffic.pools)[MIX].rows
    seed = options.seed + number
    found = offer(rig.server.grpc, config, rows, share * plain_rate, options.window, seed)
    answered = len(found.latencies_ms)
    return Window(
        config=config,
        load=f"open, {share:.1f}x",
        round_number=number,
        answers=answered / found.wall_s,
        p50_ms=percentile(found.latencies_ms, 50),
        p99_ms=percentile(found.latencies_ms, 99),
        refused=found.refused / (answered + found.refused),
        others_cpu=0.0,
    )


def _memory(traffic: Traffic, folder: Path, options: argparse.Namespace) -> Iterator[Memory]:
    """Yield the memory of each configuration, alone on a server, from its load on."""
    for config in CONFIGS:
        print(f"memory of {config}", file=sys.stderr, flush=True)
        server = _server((config,), traffic, folder / f"memory-{config}", cache="off")
        with (
            server,
            MemoryWatch(server.directory.run) as watch,
            LoadProcess(traffic.pools, "http", server.http) as load,
        ):
            rig = _Rig(server=server, load=load, traffic=traffic)
            rig.closed(config, IN_FLIGHT[-1], 0, options.window)
        yield Memory(config=config, bytes_by_role=dict(watch.peak))


def _server(
    configs: tuple[str, ...], traffic: Traffic, folder: Path, *, cache: str
) -> TritonServer:
    """Return a server with these models, not yet started."""
    for config in configs:
        write_model(folder / "models" / config, config, traffic.encoder)
    options = ServerOptions(
        repositories=(folder / "models",),
        log_file=folder / "server.log",
        environment={"GE_CACHE_DIR": cache, "GE_WARMUP": "on"},
        arguments=("--model-load-thread-count=1",),
    )
    return TritonServer(find_server(), options)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_presets", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "null"), default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=1.5, help="seconds per load")
    parser.add_argument(
        "--offered",
        nargs="+",
        type=float,
        default=[0.7, 1.5],
        help="requests of the open loops, by what the plain configuration answers at 32 in flight",
    )
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
