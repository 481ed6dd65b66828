"""What is asked: prompts of random tokens, outputs of fixed lengths, times of arrival."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["WORKLOADS", "Ask", "Workload"]

# Ordinary tokens of SmolLM2's vocabulary: no special ones.
FIRST_TOKEN, LAST_TOKEN = 100, 40_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request: when it comes, after how many seconds, its prompt, and how much is written."""

    at_s: float
    prompt: tuple[int, ...]
    tokens: int
    watched: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A set of requests, drawn from a seed. What is not `watched` gives load and no figures."""

    name: str
    description: str
    draw: Callable[[random.Random], Sequence[Ask]]

    def drawn(self, seed: int) -> Sequence[Ask]:
        """Return the requests of one round; those of two workloads have nothing in common."""
        return self.draw(random.Random(f"{self.name}{seed}"))


def _prompt(drawn: random.Random, tokens: int) -> tuple[int, ...]:
    return tuple(drawn.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(tokens))


def _unequal(drawn: random.Random, at_s: float) -> Ask:
    """Return a request with a log-normal prompt of 16 to 512 and an output of 8 to 128 tokens."""
    tokens = min(512, max(16, round(drawn.lognormvariate(math.log(64), 0.8))))
    written = min(128, max(8, round(drawn.lognormvariate(math.log(48), 0.7))))
    return Ask(at_s=at_s, prompt=_prompt(drawn, tokens), tokens=written)


def _mixed(drawn: random.Random) -> Sequence[Ask]:
    return [_unequal(drawn, 0.0) for _ in range(32)]


def _steady(drawn: random.Random) -> Sequence[Ask]:
    asks, at_s = [], 0.0
    for _ in range(48):
        at_s += drawn.expovariate(STEADY_PER_S)
        asks.append(_unequal(drawn, at_s))
    return asks


def _intruder(drawn: random.Random) -> Sequence[Ask]:
    streams = [Ask(at_s=0.0, prompt=_prompt(drawn, 32), tokens=160) for _ in range(8)]
    return [*streams, Ask(at_s=2.5, prompt=_prompt(drawn, 2000), tokens=8)]


def _single(drawn: random.Random) -> Sequence[Ask]:
    return [Ask(at_s=0.0, prompt=_prompt(drawn, 64), tokens=128)]


def _shared(drawn: random.Random) -> Sequence[Ask]:
    begin = _prompt(drawn, 512)
    return [Ask(at_s=0.0, prompt=begin + _prompt(drawn, 32), tokens=32) for _ in range(16)]


STEADY_PER_S = 3.0
_ALL = (
    Workload(
        name="mixed",
        description="32 at once, prompts 16 to 512 tokens, outputs 8 to 128",
        draw=_mixed,
    ),
    Workload(
        name="steady",
        description=f"48 of the same, by chance, {STEADY_PER_S} a second",
        draw=_steady,
    ),
    Workload(
        name="intruder",
        description="eight streams of 160 tokens, then a prompt of 2,000",
        draw=_intruder,
    ),
    Workload(
        name="shared",
        description="16 at once, 512 tokens in common and 32 of their own, 32 out",
        draw=_shared,
    ),
    Workload(name="single", description="one request, 64 tokens in, 128 out", draw=_single),
)
WORKLOADS: Mapping[str, Workload] = {workload.name: workload for workload in _ALL}
