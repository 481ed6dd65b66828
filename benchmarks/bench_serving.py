"""An encoder in our backend against what a user would take instead, on the real server.

One server has all models loaded; systems take turns in short windows, round after round. Then
requests come at random at 60 % of what the best rival can take. At the end: which aims are met.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.encoder.aims import AIMS
from benchmarks.encoder.mixes import MIXES
from benchmarks.encoder.systems import PRECISIONS, Served, absent, served_systems, write_repository
from benchmarks.encoder.traffic import (
    MINILM,
    Encoder,
    Sequences,
    load_encoder,
    pools_of,
    sequences,
)
from benchmarks.harness.aims import judged, verdicts
from benchmarks.harness.cells import Cell, cells
from benchmarks.harness.client import LoadProcess
from benchmarks.harness.report import machine, table, write
from benchmarks.harness.servers import serve
from benchmarks.harness.turns import ATTEMPTS, Load, Pace, System, Turn, take_turns, warm
from benchmarks.random_encoder import SIZES
from ge_tools.tritonserver.installation import find_server

__all__ = ["main"]

SHARE = 0.6  # of the best rival's requests per second, at random
# A queue needs more time to show itself than a closed loop does to settle.
RANDOM_WINDOWS = 2
MEMORY_IN_FLIGHT = 32
WHOLE = {"mix": list(MIXES), "concurrency": [1, 8, 32, 64], "rounds": 3, "window": 4.0}
QUICK = {"mix": ["lognormal"], "concurrency": [1, 32], "rounds": 2, "window": 1.0}


def main() -> None:
    """Run each precision; print tables and verdicts, write JSON lines and a plot."""
    options = _parse(sys.argv[1:])
    context = machine()
    print(", ".join(f"{key} {value}" for key, value in context.items()))
    for precision in options.precision:
        found: list[Cell] = []
        for found in run(precision, options):
            # Closed loops take a quarter of an hour: kept, whatever comes after them.
            write(
                f"serving-{precision}", found, {**context, "precision": precision}, options.output
            )
        for mix in options.mix:
            print(f"\n{precision}, {MIXES[mix].help}")
            print(table([cell for cell in found if cell.load.traffic == mix]), flush=True)
        if precision in AIMS:
            print(f"\n{verdicts(list(judged(found, AIMS[precision])))}", flush=True)


def run(precision: str, options: argparse.Namespace) -> Iterator[list[Cell]]:
    """Yield the cells of one precision's closed loops, then with those of requests at random."""
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        folder = Path(temporary)
        encoder = load_encoder(options.encoder, folder)
        drawn = sequences(encoder, options.mix, options.seed)
        chosen = _present(precision, encoder, options)
        pools = pools_of([served.system for served in chosen], drawn, precision)
        memory = {}
        if not options.quick and options.device == "cpu":
            memory = _memory(chosen, encoder, drawn, precision, folder)
        write_repository(folder / "models", chosen, encoder.files, encoder.width)
        with serve(folder / "models") as server, LoadProcess(pools) as process:
            systems = server.systems([served.system for served in chosen])
            loads = [Load(traffic=m, in_flight=n) for m in options.mix for n in options.concurrency]
            warm(process, systems, loads)
            turns = list(take_turns(process, systems, loads, _pace(options)))
            yield cells(turns, memory)
            if not options.quick:
                turns += _at_random(process, systems, cells(turns), options)
                yield cells(turns, memory)


def _pace(options: argparse.Namespace) -> Pace:
    return Pace(
        rounds=options.rounds,
        window_s=options.window,
        seed=options.seed,
        bound_s=60 * options.minutes,
        attempts=1 if options.quick else ATTEMPTS,
    )


def _at_random(
    process: LoadProcess,
    systems: Sequence[System],
    closed: Sequence[Cell],
    options: argparse.Namespace,
) -> list[Turn]:
    """Return turns of a Poisson process per mix; who takes less than that only grows a queue."""
    turns: list[Turn] = []
    for mix in options.mix:
        here = [cell for cell in closed if cell.load.traffic == mix]
        rivals = [cell.per_s for cell in here if not cell.system.ours]
        rate = SHARE * max(rivals or [cell.per_s for cell in here])
        able = {cell.system.name for cell in here if cell.per_s > rate}
        turns += take_turns(
            process,
            [system for system in systems if system.name in able],
            [Load(traffic=mix, rate=rate)],
            replace(_pace(options), window_s=RANDOM_WINDOWS * options.window, bound_s=0.0),
        )
    return turns


def _present(precision: str, encoder: Encoder, options: argparse.Namespace) -> list[Served]:
    installation = find_server()
    found = []
    for served in served_systems(
        precision,
        instances=options.instances,
        device=options.device,
        preferred=options.preferred,
        only=options.systems,
    ):
        if reason := absent(served, installation, encoder.files):
            print(f"{served.system.model} is left out: {reason}")
        else:
            found.append(served)
    return found


def _memory(
    chosen: Sequence[Served],
    encoder: Encoder,
    drawn: dict[str, Sequences],
    precision: str,
    folder: Path,
) -> dict[str, float]:
    """Return MiB by model: of a server that has it alone, after a window of many requests."""
    found = {}
    for served in chosen:
        repository = folder / "alone" / served.system.model
        write_repository(repository, [served], encoder.files, encoder.width)
        with (
            serve(repository) as server,
            LoadProcess(pools_of([served.system], drawn, precision)) as process,
        ):
            (system,) = server.systems([served.system])
            warm(process, [system], [Load(traffic=next(iter(drawn)), in_flight=MEMORY_IN_FLIGHT)])
            found[system.key] = server.memory_mib()
            print(f"{system.key}: {found[system.key]:.0f} MiB", file=sys.stderr, flush=True)
    return found


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_serving", description=__doc__)
    add = parser.add_argument
    add("--precision", nargs="+", choices=PRECISIONS, default=["fp32", "bf16"])
    add("--systems", nargs="+", default=[], help="names of the table; all if not given")
    add("--mix", nargs="+", choices=tuple(MIXES))
    add("--concurrency", nargs="+", type=int)
    add("--rounds", type=int)
    add("--window", type=float, help="seconds measured per system and round")
    add("--instances", type=int, default=1, help="of our systems")
    add("--preferred", type=int, default=0, help="adds ge_preferred, with this preferred size")
    add("--seed", type=int, default=1)
    add("--minutes", type=float, default=0, help="of each precision's closed loops, about")
    add("--device", default="cpu", help="of all systems; in torch also cuda:0")
    add("--encoder", choices=(MINILM, *SIZES), default=MINILM, help="others have random weights")
    add("--output", type=Path, default=Path(".cache/bench"))
    add("--quick", action="store_true", help="one mix, short windows, nothing at random, no memory")
    options = parser.parse_args(arguments)
    for name, value in (QUICK if options.quick else WHOLE).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


if __name__ == "__main__":
    main()
