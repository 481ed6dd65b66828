"""The load generator: a process of its own that does as little as it can.

It shares the cores with the server: requests are bytes made beforehand, an answer is looked at only
for its end and its status, and everything else waits until the window is over.

Reads one order per line from standard input and writes one report per line: see `Order`, `Report`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness import cpu
from benchmarks.harness.connections import ClosedLoop, Loop, OpenLoop
from benchmarks.harness.figures import percentile, rate
from benchmarks.harness.pool import Pool, load_pools

__all__ = ["Order", "Report", "main", "measure"]

# The window of a closed loop ends when each client could expect so many answers, but is never more
# than so many times as long as ordered.
MIN_TURNS = 3
MAX_WINDOWS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One window of load.

    Attributes:
        pool: the name of what is sent.
        address: `host:port` of the server's HTTP.
        in_flight: of a closed loop; 0: an open one.
        rate: requests per second of an open loop, a Poisson process.
        offset: where in the pool to begin; systems that are compared begin at the same place.
        seed: of the gaps of an open loop; systems that are compared get the same.
        settle_s: load before the window, not measured.
        roles: the server's processes, whose CPU time is read at both ends of the window.
    """

    pool: str
    address: str
    in_flight: int
    rate: float
    offset: int
    seed: int
    settle_s: float
    measure_s: float
    roles: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one window gave.

    Attributes:
        per_s: units of work answered per second.
        latencies_ms: of a closed loop those answered inside the window; of an open one those that
            were due in it.
        late_ms: p99 of how long after it was due a request of an open loop was sent.
        refused: answers of status 503 in the window.
        moved_bytes: sent and received per unit of work.
        cpu_s: CPU seconds in the window, by role of the server's processes, `client` (this process)
            and `others` (everything else on this machine, which is noise).
        checked: answers that were compared with the truth; each was right.
        errors: the first few things that went wrong.
    """

    per_s: float
    wall_s: float
    latencies_ms: Sequence[float]
    late_ms: float
    refused: int
    moved_bytes: float
    cpu_s: Mapping[str, float]
    checked: int
    errors: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Clocks:
    """Clocks at one end of a window."""

    wall: float
    client: float
    machine: float
    roles: Mapping[str, float]

    @classmethod
    def read(cls, roles: Mapping[int, str]) -> _Clocks:
        return cls(time.perf_counter(), time.process_time(), cpu.machine_s(), cpu.used_s(roles))

    def since(self, before: _Clocks) -> dict[str, float]:
        """Return CPU seconds by role between two readings."""
        used = {role: seconds - before.roles[role] for role, seconds in self.roles.items()}
        used["client"] = self.client - before.client
        used["others"] = max(0.0, self.machine - before.machine - sum(used.values()))
        return used


def measure(order: Order, pool: Pool) -> Report:
    """Run one window: settle, measure, drain, check."""
    roles = {int(pid): role for pid, role in order.roles.items()}
    loop = _loop(order, pool)
    tally = loop.tally
    loop.run(order.settle_s)
    before = _Clocks.read(roles)
    loop.run(order.measure_s)
    while order.in_flight and _too_little(order, before, tally.ends):
        loop.run(order.measure_s)
    after = _Clocks.read(roles)
    loop.drain()
    errors = [*tally.errors, *tally.check()]
    inside = [
        latency * 1e3
        for end, latency in zip(tally.ends, tally.latencies_s, strict=True)
        if before.wall < (end if order.in_flight else end - latency) <= after.wall
    ]
    return Report(
        per_s=rate(tally.ends, before.wall, after.wall),
        wall_s=after.wall - before.wall,
        latencies_ms=inside,
        late_ms=1e3 * percentile(tally.late_s, 99) if tally.late_s else 0.0,
        refused=sum(before.wall < moment <= after.wall for moment in tally.refused),
        moved_bytes=loop.moved_bytes / max(1, len(tally.ends)),
        cpu_s=after.since(before),
        checked=len(tally.kept),
        errors=errors[:3],
    )


def _loop(order: Order, pool: Pool) -> Loop:
    if order.in_flight:
        return ClosedLoop(order.address, pool, order.offset, order.in_flight)
    return OpenLoop(order.address, pool, order.offset, _gaps(order.rate, order.seed))


def _gaps(per_s: float, seed: int) -> Iterator[float]:
    drawn = random.Random(seed)
    while True:
        yield drawn.expovariate(per_s)


def _too_little(order: Order, before: _Clocks, ends: Sequence[float]) -> bool:
    """Return whether a slow system needs more time to show its speed: some batches must end."""
    if time.perf_counter() >= before.wall + MAX_WINDOWS * order.measure_s:
        return False
    return sum(end > before.wall for end in ends) <= MIN_TURNS * order.in_flight


def main() -> None:
    """Serve orders from standard input until it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pools", type=Path, required=True)
    pools = load_pools(parser.parse_args().pools)
    for line in sys.stdin:
        order = Order(**json.loads(line))
        print(json.dumps(asdict(measure(order, pools[order.pool]))), flush=True)


if __name__ == "__main__":
    main()
