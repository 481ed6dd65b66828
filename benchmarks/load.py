"""The load generator: a process of its own that keeps exactly N requests in flight.

It shares the cores with the server, so it does as little as it can: requests are bytes made
beforehand, an answer is looked at only for its end and its status, and everything else waits until
the window is over. Over HTTP that is 13 microseconds a request, measured; gRPC in Python is 100.

Reads one order per line from standard input and writes one report per line: see `Order`, `Report`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness import cpu
from benchmarks.harness.figures import rate
from benchmarks.load_grpc import GrpcLoop
from benchmarks.load_http import HttpLoop
from benchmarks.pool import Pool, load_pools
from benchmarks.tally import Tally

__all__ = ["Order", "Report", "main"]

# A window ends when each client could expect so many answers, but is never more than so many times
# as long as ordered.
LEAST_TURNS = 3
MOST_WINDOWS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One window of load.

    Attributes:
        offset: where in the pool to begin; systems that are compared begin at the same place.
        settle_s: load before the window, not measured.
        roles: the server's processes, whose CPU time is read at both ends of the window.
    """

    model: str
    mix: str
    concurrency: int
    offset: int
    settle_s: float
    measure_s: float
    roles: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one window gave.

    Attributes:
        latencies_ms: of the requests answered inside the window.
        cpu_s: CPU seconds in the window, by role of the server's processes, `client` (this
            process) and `others` (everything else on this machine, which is noise).
        checked: answers that were compared with the truth; each was right.
        errors: the first few things that went wrong.
    """

    throughput: float
    requests: int
    wall_s: float
    latencies_ms: Sequence[float]
    cpu_s: Mapping[str, float]
    checked: int
    errors: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Reading:
    """Clocks at one end of a window."""

    wall: float
    client: float
    machine: float
    roles: Mapping[str, float]

    @classmethod
    def take(cls, roles: Mapping[int, str]) -> _Reading:
        return cls(time.perf_counter(), time.process_time(), cpu.machine_s(), cpu.used_s(roles))

    def since(self, before: _Reading) -> dict[str, float]:
        """Return CPU seconds by role between two readings."""
        used = {role: seconds - before.roles[role] for role, seconds in self.roles.items()}
        used["client"] = self.client - before.client
        used["others"] = max(0.0, self.machine - before.machine - sum(used.values()))
        return used


def measure(order: Order, loop: HttpLoop | GrpcLoop, pool: Pool) -> Report:
    """Run one window: settle, measure, drain, check."""
    tally = Tally(pool)
    roles = {int(pid): role for pid, role in order.roles.items()}
    positions = itertools.count(order.offset)
    loop.start(order.model, order.mix, order.concurrency, (p % len(pool.rows) for p in positions))
    loop.run(tally, order.settle_s)
    before = _Reading.take(roles)
    while _too_little(order, before, tally):
        loop.run(tally, order.measure_s)
    after = _Reading.take(roles)
    loop.drain(tally)
    tally.check(loop.embedding)
    inside = [
        latency * 1e3
        for end, latency in zip(tally.ends, tally.latencies, strict=True)
        if before.wall < end <= after.wall
    ]
    return Report(
        throughput=rate(tally.ends, before.wall, after.wall),
        requests=len(inside),
        wall_s=after.wall - before.wall,
        latencies_ms=inside,
        cpu_s=after.since(before),
        checked=len(tally.kept),
        errors=tally.errors[:3],
    )


def _too_little(order: Order, before: _Reading, tally: Tally) -> bool:
    """Return whether a slow system needs more time to show its speed: some batches must end."""
    now = time.perf_counter()
    if now >= before.wall + MOST_WINDOWS * order.measure_s:
        return False
    return sum(end > before.wall for end in tally.ends) <= LEAST_TURNS * order.concurrency


def main() -> None:
    """Serve orders from standard input until it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pools", type=Path, required=True)
    parser.add_argument("--protocol", choices=("http", "grpc"), required=True)
    parser.add_argument("--address", required=True, help="host:port")
    options = parser.parse_args()
    pools = load_pools(options.pools)
    loop_type = HttpLoop if options.protocol == "http" else GrpcLoop
    loop = loop_type(options.address, {name: pool.rows for name, pool in pools.items()})
    for line in sys.stdin:
        order = Order(**json.loads(line))
        print(json.dumps(asdict(measure(order, loop, pools[order.mix]))), flush=True)


if __name__ == "__main__":
    main()
