"""Requests that come at random, at a share of what we can take: every system at the same rate."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.client import BenchmarkError
from benchmarks.figures import percentile
from benchmarks.open_loop import Offered, offer
from benchmarks.pool import Pool
from benchmarks.protocol import grpc_embedding
from benchmarks.results import CEILING, OURS, Result
from benchmarks.tally import Tally

__all__ = ["SHARE", "Poisson", "poisson", "poisson_table"]

# Of our throughput with the most requests in flight.
SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """One system under a Poisson process; milliseconds over all rounds.

    Attributes:
        rate: requests that came per second.
        p50_ms, p99_ms: None where the system is slower than that, and only its queue would grow.
    """

    mix: str
    system: str
    rate: float
    p50_ms: float | None
    p99_ms: float | None


def poisson(
    address: str,
    found: Sequence[Result],
    pools: Mapping[str, Pool],
    *,
    rounds: int,
    seconds: float,
    seed: int,
) -> Iterator[Poisson]:
    """Yield each mix and system, in its better layout at the most requests in flight.

    Args:
        address: `host:port` of the server's gRPC.
        found: of the closed loop: layouts, and what each system can take.
        pools: sequences, and what is right for some of them, by mix.
        rounds: of windows that take turns.
        seconds: of a window.
        seed: of the gaps, which are the same for all.

    Raises:
        BenchmarkError: a request was refused, or an answer was wrong.
    """
    for mix in dict.fromkeys(result.mix for result in found):
        most = max(result.concurrency for result in found if result.mix == mix)
        cell = [r for r in found if (r.mix, r.concurrency) == (mix, most) and r.system != CEILING]
        rate = SHARE * next(r.throughput for r in cell if r.system == OURS)
        able = [result for result in cell if result.throughput > rate]
        latencies: dict[str, list[float]] = {result.system: [] for result in able}
        order = random.Random(seed)
        for number in range(rounds):
            for result in order.sample(able, len(able)):
                model = f"{result.system}_{result.layout}" if result.layout else result.system
                offered = offer(address, model, pools[mix].rows, rate, seconds, seed + number)
                _check(f"{model}, {mix}", offered, pools[mix])
                latencies[result.system] += offered.latencies_ms
        for result in cell:
            seen = latencies.get(result.system)
            yield Poisson(
                mix=mix,
                system=result.system,
                rate=rate,
                p50_ms=percentile(seen, 50) if seen else None,
                p99_ms=percentile(seen, 99) if seen else None,
            )


def _check(what: str, offered: Offered, pool: Pool) -> None:
    if offered.refused:
        asked = offered.refused + len(offered.latencies_ms)
        raise BenchmarkError(f"{what}: {offered.refused} of {asked} requests were refused")
    tally = Tally(pool, kept=[one for one in offered.answers if one[0] in pool.answers])
    tally.check(grpc_embedding)
    if tally.errors:
        raise BenchmarkError(f"{what}: {'; '.join(tally.errors[:3])}")


def poisson_table(found: Sequence[Poisson]) -> str:
    """Return a line for each mix and system."""
    lines = [f"{'mix':12}{'requests/s':>12}  {'system':14}{'p50 ms':>10}{'p99 ms':>10}"]
    for one in found:
        times = "  slower than that"
        if one.p50_ms is not None and one.p99_ms is not None:
            times = f"{one.p50_ms:10.1f}{one.p99_ms:10.1f}"
        lines.append(f"{one.mix:12}{one.rate:12.0f}  {one.system:14}{times}")
    return "\n".join(lines)
