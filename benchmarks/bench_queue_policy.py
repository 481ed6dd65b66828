"""What a queue policy of Triton costs, and what a queue of the backend's own costs instead.

Five models that differ in nothing else take 20 ms for a batch, on a device that only sleeps, so the
machine is idle. Clients send their next request when the last one is answered. None ever waits long
enough to be refused, so the policies have nothing to do: what is slower is their price. With
`--run-ms 0` a batch takes no time, and what each way costs per request shows.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.harness import compare
from benchmarks.harness.pool import Pool
from benchmarks.harness.requests import http_request
from benchmarks.harness.turns import System
from benchmarks.model_folder import write_model

__all__ = ["POLICIES", "TRAFFIC", "echo_pool", "main", "scenario", "write_echo"]

TRAFFIC = "echo"
CONFIG = """\
backend: "ge"
max_batch_size: 8
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
dynamic_batching {{ {batching} }}
"""
HOST_POLICY = "default_queue_policy {{ {} }}"
TEN_SECONDS = 10_000_000
# name -> (inside `dynamic_batching`, parameters); the first has no bound at all, and the last has
# both bounds as parameters of the backend.
POLICIES: dict[str, tuple[str, dict[str, int]]] = {
    "no_bound": ("", {}),
    "max_queue_size": (HOST_POLICY.format("max_queue_size: 64"), {}),
    "default_timeout": (
        HOST_POLICY.format(f"default_timeout_microseconds: {TEN_SECONDS}"),
        {},
    ),
    "priority_levels": ("priority_levels: 2 default_priority_level: 1", {}),
    "ge_bounds": ("", {"max_queue_size": 64, "default_timeout_microseconds": TEN_SECONDS}),
}


def main() -> None:
    """Run it and print the table."""
    parser = compare.parser("bench_queue_policy", __doc__, [2, 8])
    parser.add_argument("--run-ms", type=float, default=20.0, help="how long a batch takes")
    options = parser.parse_args(sys.argv[1:])
    compare.run(lambda folder: scenario(folder, options.run_ms), options)


def scenario(folder: Path, run_ms: float) -> compare.Scenario:
    """Write a model for each policy, whose batches take so many milliseconds."""
    for name, (batching, parameters) in POLICIES.items():
        config = CONFIG.format(batching=batching)
        write_echo(folder / "models" / name, config, parameters, run_ms)
    return compare.Scenario(
        name="queue_policy",
        repository=folder / "models",
        systems=[System(name=name, model=name, ours=name == "ge_bounds") for name in POLICIES],
        pools=lambda _: {f"{name}/{TRAFFIC}": echo_pool(name) for name in POLICIES},
        traffic=[TRAFFIC],
    )


def echo_pool(model: str) -> Pool:
    """Return one request again and again: FP32 [1, 4]."""
    ones = np.ones((1, 4), np.float32)
    return Pool(scripts=((http_request(model, {"x": ones}),),), answers={0: ones[0]})


def write_echo(folder: Path, config: str, parameters: Mapping[str, int], run_ms: float) -> None:
    """Write a model that answers y = x, FP32 [batch, 4]; each run takes so many milliseconds."""
    tensor = {"dtype": "FP32", "dims": ["batch", 4]}
    outputs = [{"name": "y", **tensor, "compute": "echo", "of": "x"}]
    graph = {"inputs": [{"name": "x", **tensor}], "outputs": outputs, "cost_ms": {"*": run_ms}}
    write_model(folder, config, {"device": "null", **parameters}, graph=graph)


if __name__ == "__main__":
    main()
