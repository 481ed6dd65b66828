"""The planner alone: how long it takes, and what its plans cost beside simpler ways to batch.

No server and no engine: costs come from a model of an accelerator, so that anybody gets the same
ratios. `python -m tools.probes.bench_planner` prints a table, and a line of JSON per row of it.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields

import numpy as np
import numpy.typing as npt
from benchmarks.encoder.mixes import MIXES

from ge_backend.serving.batching.plan import Policy, plan
from ge_backend.serving.batching.request import Request
from ge_backend.shapes.buckets.costs import CostModel, DynamicCosts, StaticCosts
from ge_backend.shapes.buckets.grid import Bucket

__all__ = ["LENGTHS", "ROWS", "Result", "accelerator", "main"]

ROWS = (1, 4, 8, 16, 32, 64)
LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256)
REQUESTS = 64
# An accelerator: launching a run, reading the weights once, then so much per token, and a term
# that grows with the square of the length.
LAUNCH_NS, WEIGHTS_NS, TOKEN_NS, PAIR_NS = 60_000, 250_000, 900, 2.5

Lengths = list[int]
Draw = Callable[[np.random.Generator, int], npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One row: times in microseconds, the others' cost divided by the planner's (medians).

    Attributes:
        longest: the batch as it came, in one run padded to its longest.
        budget: arrival order, cut where padded tokens exceed the best budget in hindsight.
        sorted: sorted by length, cut into equal counts, the best count in hindsight.
    """

    mix: str
    engine: str
    runs: float
    plan_us: float
    plan_p99_us: float
    longest: float
    budget: float
    sorted: float


def main() -> None:
    """Measure every mix on both kinds of engines and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=200, help="batches of 64 per row")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    table: dict[Bucket, float] = {
        (rows, length): accelerator(rows, length) for rows in ROWS for length in LENGTHS
    }
    engines: dict[str, CostModel] = {
        "static": StaticCosts(table),
        "dynamic": DynamicCosts(table, ROWS[-1]),
    }
    results = [
        _measure(mix, engine, costs, _batches(draw, options.batches, options.seed))
        for mix, draw in _mixes().items()
        for engine, costs in engines.items()
    ]
    names = [field.name for field in fields(Result)]
    print("".join(f"{name:>13}" for name in names))
    for result in results:
        print("".join(f"{_cell(value):>13}" for value in asdict(result).values()))
    context = {"python": platform.python_version(), "machine": platform.machine()}
    for result in results:
        print(json.dumps({"bench": "planner", **context, **asdict(result)}))


def _mixes() -> Mapping[str, Draw]:
    known = {name: mix.lengths for name, mix in MIXES.items()}
    return {**known, "near-equal": lambda generator, count: generator.integers(60, 65, count)}


def _batches(draw: Draw, count: int, seed: int) -> list[Lengths]:
    generator = np.random.default_rng(seed)
    return [[int(length) for length in draw(generator, REQUESTS)] for _ in range(count)]


def accelerator(rows: int, length: int) -> float:
    """Return the nanoseconds that an accelerator takes for rows of a length."""
    tokens = rows * length
    return LAUNCH_NS + max(WEIGHTS_NS, TOKEN_NS * tokens) + PAIR_NS * tokens * length


def _measure(mix: str, engine: str, costs: CostModel, batches: list[Lengths]) -> Result:
    policy = Policy(axes=("length",))
    times: list[float] = []
    runs: list[int] = []
    ratios: dict[str, list[float]] = {"longest": [], "budget": [], "sorted": []}
    for lengths in batches:
        requests = [
            Request(index=i, rows=1, tensors={}, sizes=(length,))
            for i, length in enumerate(lengths)
        ]
        plan(requests, costs, policy)  # lengths seen for the first time are looked up once
        started = time.perf_counter()
        batch = plan(requests, costs, policy)
        times.append((time.perf_counter() - started) * 1e6)
        runs.append(len(batch.sub_batches))
        ours = sum(sub_batch.cost_ns for sub_batch in batch.sub_batches)
        ratios["longest"].append(_cost([lengths], costs) / ours)
        ratios["budget"].append(_best(_budgets(lengths), costs) / ours)
        ratios["sorted"].append(_best(_chunks(sorted(lengths)), costs) / ours)
    return Result(
        mix=mix,
        engine=engine,
        runs=statistics.mean(runs),
        plan_us=statistics.median(times),
        plan_p99_us=float(np.percentile(times, 99)),
        **{name: statistics.median(values) for name, values in ratios.items()},
    )


def _cost(runs: list[Lengths], costs: CostModel) -> float:
    return sum(costs.cost(len(run), (max(run),)) for run in runs)


def _best(ways: list[list[Lengths]], costs: CostModel) -> float:
    return min(_cost(runs, costs) for runs in ways)


def _budgets(lengths: Lengths) -> list[list[Lengths]]:
    return [_within(lengths, budget) for budget in (256, 512, 1024, 2048, 4096, 8192)]


def _within(lengths: Lengths, budget: int) -> list[Lengths]:
    runs: list[Lengths] = [[]]
    for length in lengths:
        longest = max([*runs[-1], length])
        if runs[-1] and longest * (len(runs[-1]) + 1) > budget:
            runs.append([])
        runs[-1].append(length)
    return runs


def _chunks(lengths: Lengths) -> list[list[Lengths]]:
    return [[lengths[i : i + n] for i in range(0, len(lengths), n)] for n in ROWS]


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
