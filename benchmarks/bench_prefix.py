"""What the prefix cache spares: `python -m benchmarks.bench_prefix`.

16 requests come at once to SmolLM2-135M-Instruct, each with 512 tokens that all have in common and
32 of its own, and draw 32 tokens greedily. In each round, with a beginning nobody has seen before,
an engine with the cache and one without take turns in this process. CPU seconds are those of this
process; with one thread others on the machine disturb them little.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from demo.chat_model import prepare
from rich.console import Console

from benchmarks.harness.report import machine
from ge_backend.device.machine.cores import usable_cores
from ge_backend.device.machine.host_memory import host_memory
from ge_text.engine.engine import Engine
from ge_text.engine.parameters import parse_parameters
from ge_text.engine.request import GenerationRequest
from ge_text.engine.settings import EngineSettings
from ge_text.engine.update import Update
from ge_text.models.base import LanguageModel
from ge_text.models.open import OpenLanguage, open_language

__all__ = ["Round", "lines", "main", "measure"]

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "chat_model"
FIELDS = ("first_s", "first_cpu_s", "whole_cpu_s", "computed")
Prompts = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one engine did with the requests of one round.

    Attributes:
        first_s: until every request had its first token.
        first_cpu_s: of this process until then.
        whole_cpu_s: until all were done.
        computed: tokens that steps computed.
    """

    requests: int
    first_s: float
    first_cpu_s: float
    whole_cpu_s: float
    computed: int


def measure(engine: Engine, prompts: Prompts, output: int) -> Round:
    """Serve all prompts at once, each for so many tokens."""
    without_token = set(map(str, range(len(prompts))))
    asked = parse_parameters({"temperature": 0, "max_tokens": output, "ignore_eos": True})

    def take(update: Update) -> bool:
        without_token.discard(update.id)
        return False

    before = engine.figures().counts["computed_tokens"]
    began, began_cpu = time.perf_counter(), time.process_time()
    first_s = first_cpu_s = 0.0
    for number, prompt in enumerate(prompts):
        engine.submit(GenerationRequest(id=str(number), prompt=prompt, parameters=asked), take)
    while engine.has_work:
        engine.step()
        if not (first_s or without_token):
            first_s = time.perf_counter() - began
            first_cpu_s = time.process_time() - began_cpu
    return Round(
        requests=len(prompts),
        first_s=first_s,
        first_cpu_s=first_cpu_s,
        whole_cpu_s=time.process_time() - began_cpu,
        computed=engine.figures().counts["computed_tokens"] - before,
    )


def lines(plain: Sequence[Round], cached: Sequence[Round]) -> list[str]:
    """Return the table: medians over the rounds, and the medians of their ratios."""
    head = ("first tokens/s", "first s", "first CPU s", "whole CPU s", "computed")
    rows = [f"{'':>10}" + "".join(f"{name:>16}" for name in head)]
    for name, rounds in (("without", plain), ("with", cached)):
        first = statistics.median(one.requests / one.first_s for one in rounds)
        others = [statistics.median(getattr(one, field) for one in rounds) for field in FIELDS]
        rows.append(f"{name:>10}" + "".join(f"{figure:16.2f}" for figure in (first, *others)))
    pairs = list(zip(plain, cached, strict=True))
    ratios = [
        statistics.median(getattr(a, field) / getattr(b, field) for a, b in pairs)
        for field in ("first_s", *FIELDS)
    ]
    rows.append(f"{'ratio':>10}" + "".join(f"{ratio:15.2f}x" for ratio in ratios))
    return rows


def main() -> None:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_prefix")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--shared", type=int, default=512, help="tokens that all begin with")
    parser.add_argument("--own", type=int, default=32, help="tokens behind them")
    parser.add_argument("--output", type=int, default=32)
    parser.add_argument("--threads", type=int, default=usable_cores())
    given = parser.parse_args()
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    folder = prepare(CACHE, Console(stderr=True))
    random = np.random.default_rng(1)
    plain: list[Round] = []
    cached: list[Round] = []
    with closing(_opened(folder, given.threads)) as a, closing(_opened(folder, given.threads)) as b:
        engines = {
            on: Engine(model, EngineSettings(prefix_cache=on, kv_cache_bytes=2**30), time.monotonic)
            for on, model in ((False, a), (True, b))
        }
        for engine in engines.values():
            measure(engine, [(1, 2, 3)] * 2, 2)  # kernels and buffers are made at first use
        for number in range(given.rounds):
            shared = tuple(random.integers(100, a.vocabulary, given.shared).tolist())
            own = random.integers(100, a.vocabulary, (given.requests, given.own)).tolist()
            for on, rounds in ((False, plain), (True, cached)):
                print(f"round {number + 1}, {'with' if on else 'without'}", file=sys.stderr)
                prompts = [(*shared, *mine) for mine in own]
                rounds.append(measure(engines[on], prompts, given.output))
    print("\n".join(lines(plain, cached)))


def _opened(folder: Path, threads: int) -> LanguageModel:
    asked = OpenLanguage(
        device="cpu",
        folder=folder,
        precision="bf16",
        threads=threads,
        block_size=16,
        memory=host_memory,
    )
    return open_language(asked).model


if __name__ == "__main__":
    main()
