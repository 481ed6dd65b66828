"""One ensemble: fused into one model, also inline, as the host's ensemble, as three client calls.

The ensemble is `text_classifier` of model_repository: tokenizer, encoder, classifier head. Texts
have very different lengths. The ways take turns in short windows, several rounds, and ratios are
taken within a round.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import serialize_byte_tensor

from benchmarks.harness.figures import percentile
from benchmarks.harness.report import machine
from benchmarks.pbtxt import parameter_lines
from benchmarks.protocol import GRPC_METHOD
from ge_tools.tritonserver import ServerOptions, TritonServer, find_server

__all__ = [
    "CALLS",
    "FUSED",
    "MODELS",
    "STEPS",
    "WAYS",
    "Raw",
    "Window",
    "draw_texts",
    "lines",
    "main",
    "request",
    "served",
    "step_lines",
]

FUSED, INLINE, HOST, CALLS = "fused", "fused, inline", "host ensemble", "three calls"
WAYS = (FUSED, INLINE, HOST, CALLS)
MODELS = {
    FUSED: "text_classifier_fused",
    INLINE: "text_classifier_fused_inline",
    HOST: "text_classifier",
}
STEPS = ("tokenizer", "text_encoder", "classifier_head")
WORDS = ("rain", "goal", "soup", "wind", "match", "bread", "cloud", "team", "salt", "storm")
TEXTS = 256
Raw = tuple[str, Sequence[int], bytes]
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one way did in one short time."""

    way: str
    concurrency: int
    round_number: int
    per_s: float
    latencies_ms: Sequence[float]
    bytes_per_request: float


def main() -> None:
    """Run it; print the tables and draw the picture."""
    options = _parse(sys.argv[1:])
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    with served() as server:
        before = _step_seconds(server.metrics)
        windows = list(_windows(server.grpc, options))
        after = _step_seconds(server.metrics)
    print("\ntexts through tokenizer, encoder and classifier head, over gRPC")
    print("\n".join(lines(windows)))
    spent = {step: after[step] - before.get(step, 0.0) for step in after}
    print("\nfused, time in each step")
    print("\n".join(step_lines(spent)))
    if options.plot:
        _plot(windows, spent, options.plot)
        print(f"wrote {options.plot}", file=sys.stderr)


@contextmanager
def served() -> Iterator[TritonServer]:
    """Serve the models of model_repository, made anew, and the fused one inline."""
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        repository = Path(temporary) / "models"
        script = ROOT / "model_repository" / "make.py"
        subprocess.run([sys.executable, str(script), "--into", str(repository)], check=True)
        inline = repository / MODELS[INLINE]
        shutil.copytree(repository / MODELS[FUSED], inline)
        with (inline / "config.pbtxt").open("a") as config:
            config.write("\n" + parameter_lines({"executor": "inline"}))
        options = ServerOptions(
            repositories=(repository,),
            log_file=Path(temporary) / "server.log",
            environment={"GE_WARMUP": "on"},
        )
        with TritonServer(find_server(), options) as server:
            yield server


def draw_texts(seed: int) -> list[str]:
    """Return texts of 1 to 100 words, most of them short."""
    drawn = random.Random(seed)
    counts = [min(100, max(1, round(drawn.lognormvariate(2.2, 0.9)))) for _ in range(TEXTS)]
    return [" ".join(drawn.choices(WORDS, k=count)) for count in counts]


def request(model: str, tensors: Mapping[str, Raw], outputs: Sequence[str]) -> bytes:
    """Return a serialised ModelInferRequest; a tensor is (type, shape, bytes)."""
    message = service_pb2.ModelInferRequest(model_name=model)
    for name, (datatype, shape, raw) in tensors.items():
        message.inputs.add(name=name, datatype=datatype).shape.extend(shape)
        message.raw_input_contents.append(raw)
    for name in outputs:
        message.outputs.add(name=name)
    serialised: bytes = message.SerializeToString()
    return serialised


def lines(windows: Sequence[Window]) -> Iterator[str]:
    """Yield the table: medians over the rounds; `fused x` is the median of each round's ratio."""
    yield (
        f"{'in flight':>9} {'way':>14} {'req/s':>8} {'p50 ms':>8} {'p99 ms':>8} "
        f"{'bytes/req':>10} {'fused x':>8}"
    )
    for concurrency in dict.fromkeys(window.concurrency for window in windows):
        here = [window for window in windows if window.concurrency == concurrency]
        fused = {w.round_number: w.per_s for w in here if w.way == FUSED}
        for way in WAYS:
            own = [window for window in here if window.way == way]
            times = [ms for window in own for ms in window.latencies_ms]
            yield (
                f"{concurrency:>9} {way:>14} {statistics.median(w.per_s for w in own):>8.0f} "
                f"{percentile(times, 50):>8.2f} {percentile(times, 99):>8.2f} "
                f"{statistics.median(w.bytes_per_request for w in own):>10.0f} "
                f"{statistics.median(fused[w.round_number] / w.per_s for w in own):>8.2f}"
            )


def step_lines(spent: Mapping[str, float]) -> Iterator[str]:
    """Yield each step's share of the time."""
    whole = sum(spent.values()) or 1.0
    for step, seconds in spent.items():
        yield f"{step:>16} {seconds:>8.2f} s {100 * seconds / whole:>4.0f} %"


def _windows(address: str, options: argparse.Namespace) -> Iterator[Window]:
    texts = draw_texts(options.seed)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        for concurrency in options.concurrency:
            for way in random.Random(number).sample(WAYS, len(WAYS)):
                load = _Load(way, texts)
                seconds = asyncio.run(load.run(address, concurrency, options.window))
                yield Window(
                    way=way,
                    concurrency=concurrency,
                    round_number=number,
                    per_s=len(load.latencies_ms) / seconds,
                    latencies_ms=load.latencies_ms,
                    bytes_per_request=load.moved / max(1, load.sent),
                )


class _Load:
    """A closed loop of one way: every worker sends a text when its last one is answered."""

    def __init__(self, way: str, texts: Sequence[str]) -> None:
        self.latencies_ms: list[float] = []
        self.moved, self.sent = 0, 0
        self._way = way
        self._texts = [
            serialize_byte_tensor(np.array([text.encode()], object)).item() for text in texts
        ]
        self._next = 0
        self._stop = False

    async def run(self, address: str, concurrency: int, seconds: float) -> float:
        """Load for so long after a moment to settle; return the measured time."""
        async with grpc.aio.insecure_channel(address) as channel:
            await channel.channel_ready()
            call = channel.unary_unary(GRPC_METHOD)
            workers = [asyncio.create_task(self._work(call)) for _ in range(concurrency)]
            await asyncio.sleep(0.3)
            self.latencies_ms, self.moved, self.sent = [], 0, 0
            started = time.perf_counter()
            await asyncio.sleep(seconds)
            found, passed = list(self.latencies_ms), time.perf_counter() - started
            self._stop = True
            await asyncio.gather(*workers)
        self.latencies_ms = found
        return passed

    async def _work(self, call: Any) -> None:
        while not self._stop:
            text = self._texts[self._next % len(self._texts)]
            self._next += 1
            started = time.perf_counter()
            if self._way == CALLS:
                await self._three(call, text)
            else:
                given = {"text": ("BYTES", (1, 1), text)}
                await self._one(call, request(MODELS[self._way], given, ["scores"]))
            self.latencies_ms.append(1e3 * (time.perf_counter() - started))
            self.sent += 1

    async def _one(self, call: Any, message: bytes) -> dict[str, Raw]:
        answer = await call(message)
        self.moved += len(message) + len(answer)
        response = service_pb2.ModelInferResponse.FromString(answer)
        return {
            output.name: (output.datatype, tuple(output.shape), raw)
            for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        }

    async def _three(self, call: Any, text: bytes) -> None:
        given = {"text": ("BYTES", (1, 1), text)}
        tokens = await self._one(call, request(STEPS[0], given, ["input_ids", "attention_mask"]))
        hidden = await self._one(call, request(STEPS[1], tokens, ["hidden"]))
        scored = {"hidden": hidden["hidden"], "attention_mask": tokens["attention_mask"]}
        await self._one(call, request(STEPS[2], scored, ["scores"]))


def _step_seconds(url: str) -> dict[str, float]:
    """Return the fused model's seconds by step, from the server's metrics."""
    time.sleep(0.6)  # published four times a second
    text = urllib.request.urlopen(url).read().decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("ge_step_seconds_total{") and f'"{MODELS[FUSED]}"' in line:
            step = line.split('step="')[1].split('"')[0]
            found[step] = found.get(step, 0.0) + float(line.rsplit(" ", 1)[1])
    return {step: found.get(step, 0.0) for step in STEPS}


def _plot(windows: Sequence[Window], spent: Mapping[str, float], path: Path) -> None:
    """Draw throughput and latency of each way, and where the fused one's time goes."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    most, least = (pick(w.concurrency for w in windows) for pick in (max, min))
    for axis, concurrency, unit in ((axes[0], least, "ms"), (axes[1], most, "req/s")):
        here = [window for window in windows if window.concurrency == concurrency]
        values = [
            statistics.median(
                statistics.median(w.latencies_ms) if unit == "ms" else w.per_s
                for w in here
                if w.way == way
            )
            for way in WAYS
        ]
        axis.bar(WAYS, values)
        axis.set(title=f"{concurrency} in flight", ylabel="median ms" if unit == "ms" else unit)
    left, whole = 0.0, sum(spent.values()) or 1.0
    for step, seconds in spent.items():
        axes[2].barh([FUSED], [100 * seconds / whole], left=left, label=step)
        left += 100 * seconds / whole
    axes[2].set(title="fused: time in each step", xlabel="%")
    axes[2].legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize="small")
    figure.savefig(path, dpi=110)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_fused", description=__doc__)
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=2.0, help="seconds per way and round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="a PNG to write")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
