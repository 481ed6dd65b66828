"""What a small model's requests wait where a large one shares their device, and what that costs it.

The device only sleeps, so the machine is idle. The large model's batches become many long runs, all
of which wait for the device at once; each request of the small one is a short run. Clients send
their next request when the last one is answered: one of the small model's, so many of the large's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_queue_policy import TRAFFIC, echo_pool, write_echo
from benchmarks.harness import compare
from benchmarks.harness.client import LoadProcess
from benchmarks.harness.figures import percentile
from benchmarks.harness.servers import Running, serve
from benchmarks.harness.turns import Load, System, one_window

__all__ = ["Window", "lines", "main", "write_repository"]

CONFIG = """\
backend: "ge"
max_batch_size: 32
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching { }
"""
LARGE = "large"
# name -> (what it is, its parameters)
SMALL: dict[str, tuple[str, dict[str, int]]] = {
    "small": ("as it is", {}),
    "small_first": ("`priority: 1`", {"priority": 1}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One short time: the milliseconds of the small model's answers, how many the large one gave.

    Attributes:
        small: which of the small models; "" where the large one was alone.
        clients: of the large model.
        large_per_s: its answers in a second.
    """

    small: str
    clients: int
    small_ms: Sequence[float]
    large_per_s: float


def main() -> None:
    """Run it and print the table."""
    options = _parse(sys.argv[1:])
    compare.announce()
    pools = {f"{name}/{TRAFFIC}": echo_pool(name) for name in (LARGE, *SMALL)}
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        write_repository(Path(temporary), options.small_ms, options.large_ms)
        with (
            serve(Path(temporary)) as server,
            LoadProcess(pools) as beside,
            LoadProcess(pools) as process,
            ThreadPoolExecutor(1) as thread,
        ):

            def window(small: str, clients: int) -> Window:
                of_large = thread.submit(_per_s, beside, server, clients, options.window)
                small_ms = _latencies_ms(process, server, small, options.window)
                rate = of_large.result()
                return Window(small=small, clients=clients, small_ms=small_ms, large_per_s=rate)

            windows = list(_windows(window, options))
    print("\n".join(lines(windows)))


def write_repository(repository: Path, small_ms: float, large_ms: float) -> None:
    """Write the models; each row is a run, which takes so many milliseconds."""
    models = {name: (parameters, small_ms) for name, (_, parameters) in SMALL.items()}
    for name, (parameters, run_ms) in {LARGE: ({}, large_ms), **models}.items():
        write_echo(repository / name, CONFIG, {"buckets.rows": 1, **parameters}, run_ms)


def lines(windows: Sequence[Window]) -> Iterator[str]:
    """Yield a Markdown table; the large model's answers are a share of those it gives alone."""
    yield "| clients of the large model | small model | p50 | p99 | the large model's answers |"
    yield "| ---: | --- | ---: | ---: | ---: |"
    for clients in dict.fromkeys(window.clients for window in windows):
        alone = _large_per_s(windows, "", clients)
        for name, (title, _) in SMALL.items():
            own = [w for w in windows if (w.small, w.clients) == (name, clients)]
            times = [ms for window in own for ms in window.small_ms]
            share = f"{_large_per_s(windows, name, clients) / alone:.2f}x" if clients else ""
            middle, most = percentile(times, 50), percentile(times, 99)
            yield f"| {clients} | {title} | {middle:.0f} ms | {most:.0f} ms | {share} |"


def _large_per_s(windows: Sequence[Window], small: str, clients: int) -> float:
    rates = [w.large_per_s for w in windows if (w.small, w.clients) == (small, clients)]
    return sum(rates) / max(1, len(rates))


def _windows(window: Callable[[str, int], Window], options: argparse.Namespace) -> Iterator[Window]:
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        for clients in [0, *options.clients]:
            for small in ["", *SMALL]:
                yield window(small, clients)


def _per_s(process: LoadProcess, server: Running, clients: int, seconds: float) -> float:
    """Return the large model's answers in a second, with so many requests in flight."""
    if not clients:
        return 0.0
    (large,) = server.systems([System(name=LARGE, model=LARGE)])
    return one_window(process, large, Load(traffic=TRAFFIC, in_flight=clients), seconds).per_s


def _latencies_ms(
    process: LoadProcess, server: Running, small: str, seconds: float
) -> Sequence[float]:
    """Return the milliseconds of a small model's answers, one request in flight; "" has none."""
    if not small:
        return ()
    (system,) = server.systems([System(name=small, model=small)])
    return one_window(process, system, Load(traffic=TRAFFIC, in_flight=1), seconds).latencies_ms


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_sharing", description=__doc__)
    parser.add_argument("--clients", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--small-ms", type=float, default=2.0, help="how long its runs take")
    parser.add_argument("--large-ms", type=float, default=50.0, help="how long its runs take")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--window", type=float, default=4.0, help="seconds per pair and round")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
