"""Steps per second of live sequences: ours, a Python model with a dict of states, the ceiling.

Every live sequence sends its next step when the last one is answered. One server has both models,
each with one instance and with two, and ours with its executor in the stub's own process, too; they
take turns in short windows, several rounds, and ratios are taken within a round, to ours with two.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import onnxruntime
from tritonclient.grpc import service_pb2

from benchmarks.harness.figures import percentile
from benchmarks.harness.report import machine
from benchmarks.pbtxt import parameter_lines
from benchmarks.protocol import GRPC_METHOD
from benchmarks.recurrent import FEATURES, write_step
from ge_tools.tritonserver import ServerOptions, TritonServer, find_server

__all__ = ["Window", "ceiling", "lines", "main", "step_request", "write_repository"]

INLINE = "ge_1_inline"
# Model -> its backend and how many instances it has.
MODELS = {
    "ge_2": ("ge", 2),
    "ge_1": ("ge", 1),
    INLINE: ("ge", 1),
    "state_dict_2": ("python", 2),
    "state_dict_1": ("python", 1),
}
OURS = "ge_2"
STEPS = 50  # of one sequence, from its start to its end
BATCH = 32
CONFIG = """\
backend: "{backend}"
max_batch_size: 32
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {features} ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {hidden} ] }} ]
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
sequence_batching {{
  oldest {{ max_candidate_sequences: 512 max_queue_delay_microseconds: 100 }}
  max_sequence_idle_microseconds: 60000000
  {state}
}}
"""
STATE = 'state [ {{ input_name: "h" output_name: "h_next" data_type: TYPE_FP32 dims: [ {} ] }} ]'


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one system did in one short time."""

    system: str
    live: int
    round_number: int
    steps_per_s: float
    latencies_ms: Sequence[float]


def main() -> None:
    """Run it and print the table."""
    options = _parse(sys.argv[1:])
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        repository = Path(temporary)
        write_repository(repository, options.hidden)
        best = ceiling(repository / OURS / "1" / "model.onnx", options.hidden, options.window)
        with TritonServer(
            find_server(),
            ServerOptions(repositories=(repository,), log_file=repository / "server.log"),
        ) as server:
            windows = list(_windows(server.grpc, options))
    print(f"\nGRU of {options.hidden}, steps of live sequences, over gRPC; ceiling {best:.0f}/s")
    print("\n".join(lines(windows, best)))


def write_repository(repository: Path, hidden: int) -> None:
    """Write all models on the same file."""
    for name, (backend, instances) in MODELS.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        write_step(version / "model.onnx", hidden)
        text = CONFIG.format(
            backend=backend,
            instances=instances,
            features=FEATURES,
            hidden=hidden,
            state=STATE.format(hidden) if backend == "ge" else "",
        )
        text += parameter_lines({"executor": "inline"} if name == INLINE else {})
        (version.parent / "config.pbtxt").write_text(text)
        if backend == "python":
            shutil.copy(Path(__file__).parent / "rivals" / "state_dict.py", version / "model.py")


def ceiling(path: Path, hidden: int, seconds: float) -> float:
    """Return the steps per second of full batches in this process, with nothing around them."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = np.zeros((BATCH, FEATURES), np.float32)
    h = np.zeros((BATCH, hidden), np.float32)
    session.run(None, {"x": x, "h": h})
    started, runs = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        _, h = session.run(["y", "h_next"], {"x": x, "h": h})
        runs += 1
    return runs * BATCH / (time.perf_counter() - started)


def lines(windows: Sequence[Window], best: float) -> Iterator[str]:
    """Yield the table: medians over the rounds; `ours x` is the median of each round's ratio."""
    yield f"{'live':>6} {'system':>12} {'steps/s':>9} {'p50 ms':>8} {'p99 ms':>8} {'ours x':>7}"
    for live in dict.fromkeys(window.live for window in windows):
        here = [window for window in windows if window.live == live]
        ours = {w.round_number: w.steps_per_s for w in here if w.system == OURS}
        for system in dict.fromkeys(window.system for window in here):
            own = [window for window in here if window.system == system]
            times = [ms for window in own for ms in window.latencies_ms]
            rate = statistics.median(window.steps_per_s for window in own)
            ratio = statistics.median(ours[w.round_number] / w.steps_per_s for w in own)
            yield (
                f"{live:>6} {system:>12} {rate:>9.0f} {percentile(times, 50):>8.2f} "
                f"{percentile(times, 99):>8.2f} {ratio:>7.2f}"
            )
        share = statistics.median(ours.values()) / best
        yield f"{'':>6} {'ceiling':>12} {best:>9.0f} {'':>8} {'':>8} {share:>7.2f}"


def step_request(model: str, sequence: int, number: int) -> bytes:
    """Return a serialised ModelInferRequest for one step of a sequence."""
    request = service_pb2.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="x", datatype="FP32")
    tensor.shape.extend([1, FEATURES])
    request.raw_input_contents.append(np.full(FEATURES, number % 7, np.float32).tobytes())
    request.parameters["sequence_id"].int64_param = sequence
    request.parameters["sequence_start"].bool_param = number == 0
    request.parameters["sequence_end"].bool_param = number == STEPS - 1
    serialised: bytes = request.SerializeToString()
    return serialised


def _windows(address: str, options: argparse.Namespace) -> Iterator[Window]:
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        for live in options.live:
            for system in MODELS if number % 2 == 0 else reversed(MODELS):
                ended, seconds = asyncio.run(_load(address, system, live, options.window))
                yield Window(
                    system=system,
                    live=live,
                    round_number=number,
                    steps_per_s=len(ended) / seconds,
                    latencies_ms=ended,
                )


async def _load(address: str, model: str, live: int, seconds: float) -> tuple[list[float], float]:
    """Keep so many sequences going; return the milliseconds of each step, and the time."""
    ended: list[float] = []
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        call = channel.unary_unary(GRPC_METHOD)
        stop = asyncio.Event()
        prepared = [
            [step_request(model, sequence, number) for number in range(STEPS)]
            for sequence in range(1, live + 1)
        ]
        workers = [asyncio.create_task(_live(call, steps, ended, stop)) for steps in prepared]
        await asyncio.sleep(0.3)  # to settle
        ended.clear()
        started = time.perf_counter()
        await asyncio.sleep(seconds)
        found, passed = list(ended), time.perf_counter() - started
        stop.set()
        await asyncio.gather(*workers)
    return found, passed


async def _live(call: Any, steps: list[bytes], ended: list[float], stop: asyncio.Event) -> None:
    """Send sequence after sequence, step after step; end with a sequence's end."""
    while not stop.is_set():
        for step in steps:
            started = time.perf_counter()
            await call(step)
            ended.append(1e3 * (time.perf_counter() - started))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_sequences", description=__doc__)
    parser.add_argument("--live", nargs="+", type=int, default=[1, 16, 64, 256])
    parser.add_argument("--hidden", type=int, default=256, help="size of the network's state")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=2.0, help="seconds per system and round")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
