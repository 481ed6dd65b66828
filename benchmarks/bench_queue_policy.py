"""What a queue policy of Triton costs, and what a queue of the backend's own costs instead.

Five models that differ in nothing else take 20 ms for a batch, on a device that only sleeps, so the
machine is idle. Clients send their next request when the last one is answered. Nobody ever waits
long enough to be refused, so the policies have nothing to do: what is slower is their price. With
`--run-ms 0` a batch takes no time, and what each way costs per request shows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
from tritonclient.grpc import service_pb2

from benchmarks.harness.figures import percentile
from benchmarks.harness.report import machine
from benchmarks.pbtxt import parameter_lines
from ge_tools.tritonserver import ServerOptions, TritonServer, find_server

__all__ = [
    "POLICIES",
    "Window",
    "keep_asking",
    "lines",
    "main",
    "served",
    "write_echo",
    "write_repository",
]

GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"
# An answer that took so long came of a batch that began late, not of one that was long.
LATE_MS = 250.0
CONFIG = """\
backend: "ge"
max_batch_size: 8
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
dynamic_batching {{ {batching} }}
parameters {{ key: "device" value {{ string_value: "null" }} }}
{parameters}
"""
HOST_POLICY = "default_queue_policy {{ {} }}"
TEN_SECONDS = 10_000_000
# name -> (what it is, inside `dynamic_batching`, parameters)
POLICIES: dict[str, tuple[str, str, dict[str, int]]] = {
    "none": ("no bound at all", "", {}),
    "size": ("Triton's `max_queue_size`", HOST_POLICY.format("max_queue_size: 64"), {}),
    "timeout": (
        "Triton's `default_timeout_microseconds`",
        HOST_POLICY.format(f"default_timeout_microseconds: {TEN_SECONDS}"),
        {},
    ),
    "priorities": (
        "Triton's `priority_levels`",
        "priority_levels: 2 default_priority_level: 1",
        {},
    ),
    "own": (
        "both bounds as parameters of the backend",
        "",
        {"max_queue_size": 64, "default_timeout_microseconds": TEN_SECONDS},
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The answers of one model in one short time."""

    policy: str
    clients: int
    seconds: float
    latencies_ms: Sequence[float]


def main() -> None:
    """Run it and print the table."""
    options = _parse(sys.argv[1:])
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    with served(lambda folder: write_repository(folder, options.run_ms)) as address:
        windows = list(_windows(address, options))
    print("\n".join(lines(windows)))


@contextmanager
def served(write: Callable[[Path], None]) -> Iterator[str]:
    """Serve what is written into a folder, warmed up; yield the address for gRPC."""
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        repository = Path(temporary)
        write(repository)
        settings = ServerOptions(
            repositories=(repository,),
            log_file=repository / "server.log",
            environment={"GE_WARMUP": "on"},
        )
        with TritonServer(find_server(), settings) as server:
            yield server.grpc


def write_repository(repository: Path, run_ms: float) -> None:
    """Write a model for each policy; a batch takes so many milliseconds."""
    for name, (_, batching, parameters) in POLICIES.items():
        config = CONFIG.format(batching=batching, parameters=parameter_lines(parameters))
        write_echo(repository / name, config, run_ms)


def write_echo(folder: Path, config: str, run_ms: float) -> None:
    """Write a model that answers y = x, FP32 [batch, 4]; each run takes so many milliseconds."""
    tensor = {"dtype": "FP32", "dims": ["batch", 4]}
    outputs = [{"name": "y", **tensor, "compute": "echo", "of": "x"}]
    graph = {"inputs": [{"name": "x", **tensor}], "outputs": outputs, "cost_ms": {"*": run_ms}}
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.null").write_text(json.dumps(graph))
    (folder / "config.pbtxt").write_text(config)


def lines(windows: Sequence[Window]) -> Iterator[str]:
    """Yield a Markdown table; `late` are answers that took more than `LATE_MS`."""
    yield "| clients | bound | answers/s | p50 | p99 | longest | late |"
    yield "| ---: | --- | ---: | ---: | ---: | ---: | ---: |"
    for clients in dict.fromkeys(window.clients for window in windows):
        for policy, (title, _, _) in POLICIES.items():
            own = [w for w in windows if (w.clients, w.policy) == (clients, policy)]
            times = [ms for window in own for ms in window.latencies_ms]
            late = sum(ms > LATE_MS for ms in times) / len(times)
            rate = len(times) / sum(window.seconds for window in own)
            middle, most = percentile(times, 50), percentile(times, 99)
            yield (
                f"| {clients} | {title} | {rate:.0f} | {middle:.0f} ms | {most:.0f} ms "
                f"| {max(times):.0f} ms | {late:.1%} |"
            )


def _windows(address: str, options: argparse.Namespace) -> Iterator[Window]:
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        for clients in options.clients:
            for policy in POLICIES if number % 2 == 0 else reversed(POLICIES):
                times, seconds = asyncio.run(keep_asking(address, policy, clients, options.window))
                yield Window(policy=policy, clients=clients, seconds=seconds, latencies_ms=times)


async def keep_asking(
    address: str, model: str, clients: int, window_s: float
) -> tuple[list[float], float]:
    """Keep so many requests in flight; return the milliseconds of each, and the time."""
    times: list[float] = []
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(np.ones(4, np.float32).tobytes())
    block = request.SerializeToString()
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        call = channel.unary_unary(GRPC_METHOD)
        begun = time.perf_counter()
        await asyncio.gather(
            *(_client(call, block, times, begun + window_s) for _ in range(clients))
        )
        return times, time.perf_counter() - begun


async def _client(call: Any, block: bytes, times: list[float], end: float) -> None:
    while (begun := time.perf_counter()) < end:
        await call(block)
        times.append(1e3 * (time.perf_counter() - begun))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_queue_policy", description=__doc__)
    parser.add_argument("--clients", nargs="+", type=int, default=[2, 8])
    parser.add_argument("--run-ms", type=float, default=20.0, help="how long a batch takes")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--window", type=float, default=2.0, help="seconds per model and round")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
