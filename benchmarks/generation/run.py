"""Sending a workload to a system and noting when each token came."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from benchmarks.generation.workloads import Ask

__all__ = ["Outcome", "System", "drive"]


class System(Protocol):
    """One way to generate text.

    Attributes:
        name: what it is called in tables.
    """

    name: str

    def awake(self) -> AbstractContextManager[None]:
        """Let it run while the block does; one that takes CPU time while idle is stopped else."""
        return nullcontext()

    def tokens(self, ask: Ask) -> AsyncIterator[int]:
        """Yield how many tokens have come, whenever some do."""

    def cpu_s(self) -> float:
        """Return the CPU time that the system has used so far."""

    def memory_mib(self) -> float:
        """Return the memory that the system takes now (PSS)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one workload was like.

    Attributes:
        first_ms: from each request's coming to its first token.
        next_ms: from each token to the next; tokens that come together follow each other at once.
    """

    tokens_per_s: float
    first_ms: Sequence[float]
    next_ms: Sequence[float]
    cpu_s_per_1000: float
    memory_mib: float


async def drive(system: System, asks: Sequence[Ask]) -> Outcome:
    """Send the requests at their times and wait for all tokens."""
    with system.awake():
        cpu_s, began = system.cpu_s(), time.perf_counter()
        stamps = await asyncio.gather(*(_stamps(system, ask, began) for ask in asks))
        seconds = time.perf_counter() - began
    written = sum(len(own) for own in stamps)
    expected = sum(ask.tokens for ask in asks)
    if written != expected:
        raise RuntimeError(f"{system.name} wrote {written} tokens, expected {expected}")
    return Outcome(
        tokens_per_s=written / seconds,
        first_ms=[
            1000 * (own[0] - began - ask.at_s) for own, ask in zip(stamps, asks, strict=True)
        ],
        next_ms=[1000 * (b - a) for own in stamps for a, b in itertools.pairwise(own)] or [0.0],
        cpu_s_per_1000=1000 * (system.cpu_s() - cpu_s) / written,
        memory_mib=system.memory_mib(),
    )


async def _stamps(system: System, ask: Ask, began: float) -> list[float]:
    await asyncio.sleep(max(0.0, began + ask.at_s - time.perf_counter()))
    stamps: list[float] = []
    async for count in system.tokens(ask):
        stamps += [time.perf_counter()] * count
    return stamps
