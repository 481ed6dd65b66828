"""A scenario: what is served, what is sent, what is aimed at; and running one."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.aims import Aims, judged, verdicts
from benchmarks.harness.cells import Cell, cells
from benchmarks.harness.client import LoadProcess
from benchmarks.harness.pool import Pool
from benchmarks.harness.report import machine, table, write
from benchmarks.harness.servers import FRESH, serve
from benchmarks.harness.turns import ATTEMPTS, Load, Pace, System, take_turns, warm

__all__ = ["Scenario", "announce", "pace_of", "parser", "run", "show"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A comparison, ready to be served.

    Attributes:
        name: of its files of results.
        repository: the model repository, written.
        systems: what takes turns.
        pools: `model/traffic` -> what is sent; a function of the server's HTTP address where only
            a server can say it.
        traffic: the loads' names.
        aims: what is judged; None: nothing.
        environment: of the server.
    """

    name: str
    repository: Path
    systems: Sequence[System]
    pools: Callable[[str], Mapping[str, Pool]]
    traffic: Sequence[str]
    aims: Aims | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: FRESH)

    def loads(self, in_flight: Sequence[int]) -> list[Load]:
        """Return a closed loop for each traffic and number."""
        return [Load(traffic=kind, in_flight=n) for kind in self.traffic for n in in_flight]


def parser(name: str, description: str | None, in_flight: Sequence[int]) -> argparse.ArgumentParser:
    """Return a parser of what every comparison is told."""
    made = argparse.ArgumentParser(prog=name, description=description)
    made.add_argument("--concurrency", nargs="+", type=int, default=list(in_flight))
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--window", type=float, default=2.0, help="seconds per system and round")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--attempts", type=int, default=ATTEMPTS, help="at a disturbed window")
    made.add_argument("--output", type=Path, default=Path(".cache/bench"))
    return made


def pace_of(options: argparse.Namespace) -> Pace:
    """Return the pace that was asked for."""
    return Pace(
        rounds=options.rounds,
        window_s=options.window,
        seed=options.seed,
        attempts=options.attempts,
    )


def announce() -> dict[str, object]:
    """Print and return what figures depend on."""
    context = machine()
    print(", ".join(f"{key} {value}" for key, value in context.items()), flush=True)
    return context


def run(make: Callable[[Path], Scenario], options: argparse.Namespace) -> list[Cell]:
    """Serve a scenario, take turns, print and write what was found.

    Args:
        make: writes the scenario's files into a folder.
        options: of `parser`.
    """
    context = announce()
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        scenario = make(Path(temporary))
        with (
            serve(scenario.repository, scenario.environment) as server,
            LoadProcess(scenario.pools(server.http)) as process,
        ):
            systems, loads = server.systems(scenario.systems), scenario.loads(options.concurrency)
            warm(process, systems, loads)
            found = cells(list(take_turns(process, systems, loads, pace_of(options))))
    show(scenario.name, found, scenario.aims)
    write(scenario.name, found, context, options.output)
    return found


def show(title: str, found: Sequence[Cell], aims: Aims | None) -> None:
    """Print the table and the verdicts."""
    print(f"\n{title}\n{table(found)}", flush=True)
    if aims is not None:
        print(f"\n{verdicts(list(judged(found, aims)))}", flush=True)
