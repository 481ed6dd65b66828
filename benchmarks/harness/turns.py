"""Systems that take turns under one load after another, so that what else runs hits all alike."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.harness.client import LoadProcess
from benchmarks.harness.generator import Order, Report

__all__ = [
    "ATTEMPTS",
    "Load",
    "Pace",
    "System",
    "Turn",
    "fastest_ms",
    "one_window",
    "take_turns",
    "warm",
]

# A window in which others used more of the cores than this is measured again, so many times.
QUIET_SHARE = 0.075
ATTEMPTS = 3
WARM_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How requests come.

    Attributes:
        traffic: what is sent; a system's pool is named after its model and this.
        in_flight: of a closed loop; 0: requests come at random, `rate` in a second.
    """

    traffic: str
    in_flight: int = 0
    rate: float = 0.0

    @property
    def label(self) -> str:
        """As tables name it."""
        return str(self.in_flight) if self.in_flight else f"{self.rate:.0f}/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One of what is compared, running.

    Attributes:
        name: in tables; several layouts of one system share it, and its better one counts.
        layout: `1x2` is one instance with two threads; "" where there is one alone.
        model: the served model.
        ours: whether it is measured against the others, or the others are its rivals.
        address: `host:port` of its server's HTTP.
        roles: of its server's processes by process id; see `cpu.role`.
    """

    name: str
    model: str
    layout: str = ""
    ours: bool = False
    address: str = ""
    roles: Mapping[int, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Name and layout."""
        return f"{self.name} {self.layout}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many rounds of what windows.

    Attributes:
        rounds: at most.
        window_s: of each turn, and a fifth before it to settle.
        seed: of orders, places and gaps.
        bound_s: no further round begins that would end later than this after the first; 0: all do.
        attempts: how often a window is measured in which the rest of the machine was busy.
    """

    rounds: int
    window_s: float
    seed: int = 1
    bound_s: float = 0.0
    attempts: int = ATTEMPTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one system did under one load in one round."""

    system: System
    load: Load
    round_number: int
    report: Report


def take_turns(
    process: LoadProcess,
    systems: Sequence[System],
    loads: Sequence[Load],
    pace: Pace,
) -> Iterator[Turn]:
    """Yield a window for each round, load and system.

    The order of the systems differs from round to round; all begin at the same place of their pool.

    Args:
        process: what loads them; it has a pool `model/traffic` for each model and load.
        systems: what takes turns.
        loads: one after another in each round.
        pace: how many rounds of what windows.
    """
    begun = time.monotonic()
    for number in range(pace.rounds):
        passed = time.monotonic() - begun
        if number and 0 < pace.bound_s < passed * (number + 1) / number:
            print(f"{number} of {pace.rounds} rounds, for lack of time", file=sys.stderr)
            return
        print(f"round {number + 1} of {pace.rounds}", file=sys.stderr, flush=True)
        drawn = random.Random(pace.seed + number)
        offset = drawn.randrange(1 << 20)
        for load in loads:
            for system in drawn.sample(systems, len(systems)):
                order = _order(system, load, offset, pace.seed + number, pace.window_s)
                report = _quietest(process, order, pace.attempts)
                yield Turn(system=system, load=load, round_number=number, report=report)


def warm(process: LoadProcess, systems: Sequence[System], loads: Sequence[Load]) -> None:
    """Let every system find out what only requests show, with the fewest and the most in flight."""
    for load in {min(loads, key=_in_flight), max(loads, key=_in_flight)}:
        for system in systems:
            one_window(process, system, load, WARM_S)


def one_window(process: LoadProcess, system: System, load: Load, window_s: float) -> Report:
    """Return what one system does under one load, by itself."""
    return process.measure(_order(system, load, 0, 0, window_s))


def _in_flight(load: Load) -> int:
    return load.in_flight


def _order(system: System, load: Load, offset: int, seed: int, window_s: float) -> Order:
    return Order(
        pool=f"{system.model}/{load.traffic}",
        address=system.address,
        in_flight=load.in_flight,
        rate=load.rate,
        offset=offset,
        seed=seed,
        settle_s=window_s / 5,
        measure_s=window_s,
        roles={str(pid): role for pid, role in system.roles.items()},
    )


def _quietest(process: LoadProcess, order: Order, attempts: int) -> Report:
    """Measure again while the rest of the machine is busy; return the quietest window."""
    reports: list[Report] = []
    for _ in range(attempts):
        reports.append(process.measure(order))
        if _others(reports[-1]) <= QUIET_SHARE * (os.cpu_count() or 1):
            break
    return min(reports, key=_others)


def _others(report: Report) -> float:
    """Return how many cores the rest of the machine used."""
    return report.cpu_s["others"] / report.wall_s


def fastest_ms(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return milliseconds of each way's fastest turn, for what needs no server."""
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, run in ways.items():
            begun = time.perf_counter()
            run()
            found[name] = min(found[name], (time.perf_counter() - begun) * 1e3)
    return found
