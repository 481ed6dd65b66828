"""How long requests wait for a server that takes together what has come meanwhile: pure arithmetic.

While a batch runs, requests come; when it is done, those that wait run as the next batch, up to a
limit. What waits at the ends of batches is a Markov chain; its stationary distribution says what a
request finds that comes at any time. Requests come independently of each other (Poisson).

Source: N. T. J. Bailey, "On queueing processes with bulk service", J. Roy. Stat. Soc. B 16 (1954).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ge_backend.tensors import Array

__all__ = ["Forecast", "fewest_replicas", "waiting"]

# Queues up to this many batches are looked at; a server that has longer ones is too busy.
BATCHES = 6
LONGER = 1e-3
SLICES = 8  # of a run, in which a request may come
NEGLIGIBLE = 1e-7
# Quantiles that stand for how many come behind a request before its batch begins.
LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
MAX_REPLICAS = 1 << 16


@dataclass(frozen=True, slots=True)
class Forecast:
    """One server under a steady load.

    Attributes:
        busy: part of the time in which something runs.
        batch: requests that run together, on average.
        p50_s, p99_s: from coming to being answered.
    """

    busy: float
    batch: float
    p50_s: float
    p99_s: float


def fewest_replicas(load: Callable[[int], Forecast | None], p99_s: float) -> int | None:
    """Return the least number of servers that answer 99 of 100 requests in time; None if none do.

    `load` tells how it is with a number of them; more never make it worse.
    """

    def enough(replicas: int) -> bool:
        found = load(replicas)
        return found is not None and found.p99_s <= p99_s

    high = 1
    while not enough(high):
        high *= 2
        if high > MAX_REPLICAS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def waiting(times: Array, rate: float) -> Forecast | None:
    """Return how requests fare; None where they come faster than they go, or nearly so.

    Args:
        times: float64 [B, K], seconds; row b holds K equally likely ones of b + 1 requests at once.
        rate: requests per second, above 0.
    """
    most = len(times)
    queue = (BATCHES + 1) * most + 10
    if rate * times[-1].mean() >= most:
        return None
    found = _stationary(times, rate, queue)
    if found[-most:].sum() > LONGER:
        return None
    latencies, weights = _latencies(times, rate, found)
    taken = np.minimum(np.maximum(np.arange(queue + 1), 1), most)
    running = float(found @ times.mean(axis=1)[taken - 1])
    order = np.argsort(latencies)
    shares = np.cumsum(weights[order]) / weights.sum()
    p50_s, p99_s = latencies[order][np.searchsorted(shares, [0.5, 0.99])]
    return Forecast(
        busy=running / (running + found[0] / rate),
        batch=float(found @ taken),
        p50_s=float(p50_s),
        p99_s=float(p99_s),
    )


def _poisson(means: Array, longest: int) -> Array:
    """Return float64 [..., longest + 1]: the probability of each count; the rest is left out."""
    counts = np.arange(longest + 1)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(counts[1:]))])
    logs = np.log(np.maximum(means, 1e-300))[..., None]
    chances: Array = np.exp(counts * logs - means[..., None] - factorials)
    return chances


def _stationary(times: Array, rate: float, queue: int) -> Array:
    """Return float64 [queue + 1]: how often each number waits when a batch ends."""
    most = len(times)
    arrivals = _poisson(rate * times, queue).mean(axis=1)
    moves = np.zeros((queue + 1, queue + 1))
    for waits in range(queue + 1):
        taken = min(max(waits, 1), most)
        left = max(waits, 1) - taken
        moves[waits, left:] = arrivals[taken - 1, : queue + 1 - left]
        moves[waits, -1] += 1 - moves[waits].sum()
    # p = p M, and all of p is 1: the last equation is one too many, so it gives way.
    equations = moves.T - np.eye(queue + 1)
    equations[-1] = 1.0
    right = np.zeros(queue + 1)
    right[-1] = 1.0
    solved: Array = np.clip(np.linalg.solve(equations, right), 0.0, None)
    return solved


def _latencies(times: Array, rate: float, found: Array) -> tuple[Array, Array]:
    """Return latencies, and how many requests of a cycle have each."""
    most, draws = times.shape
    full_s = times[-1].mean()
    parts = (np.arange(SLICES) + 0.5) / SLICES
    # The first of a batch of one, which finds nothing running.
    latencies, weights = [times[0]], [np.full(draws, found[0] / draws)]
    which = (np.arange(draws) + 3 * np.arange(SLICES)[:, None] + 1) % draws  # others than this run
    for waits in np.flatnonzero(found > NEGLIGIBLE):
        taken = min(max(waits, 1), most)
        left = max(waits, 1) - taken
        run_s = times[taken - 1]
        rest_s = (1 - parts)[:, None] * run_s  # [slices, draws]
        chances = _poisson(rate * parts[:, None] * run_s, len(found) - 1)  # [slices, draws, counts]
        ahead = left + np.arange(len(found))
        batches = ahead // most
        until_s = rest_s[..., None] + batches * full_s
        weight = chances * (found[waits] * rate * run_s / (SLICES * draws))[:, None]
        kept = weight > NEGLIGIBLE * found[waits]
        place = np.broadcast_to(ahead - batches * most + 1, kept.shape)[kept]
        other = np.broadcast_to(which[..., None], kept.shape)[kept]
        joining = _poisson(rate * until_s[kept], most).cumsum(axis=1)
        for level in LEVELS:
            mine = np.minimum(most, place + (joining < level).sum(axis=1))
            latencies.append(until_s[kept] + times[mine - 1, other])
            weights.append(weight[kept] / len(LEVELS))
    return np.concatenate(latencies), np.concatenate(weights)
