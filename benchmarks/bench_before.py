"""This tree against an earlier commit of itself, on two real servers that take turns.

Each side has its own server, started from its own tree, with the same models; windows alternate,
and ratios are taken within a round, so that whatever else the machine does hits both.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks import bench_fused, bench_sequences
from benchmarks.encoder.systems import PRECISIONS, served_systems, write_repository
from benchmarks.encoder.traffic import MINILM, load_encoder, pools_of, sequences
from benchmarks.harness import compare
from benchmarks.harness.cells import cells
from benchmarks.harness.client import LoadProcess
from benchmarks.harness.report import ROOT, write
from benchmarks.harness.servers import FRESH, checked_out, serve_tree
from benchmarks.harness.turns import System, take_turns, warm

__all__ = ["main", "sides"]


def main() -> None:
    """Run it and print a table per system."""
    parser = compare.parser("bench_before", __doc__, [1, 8, 32, 64])
    parser.add_argument("commit", help="whatever git knows, such as HEAD~20 or v0.1")
    parser.add_argument("--scenario", choices=tuple(SCENARIOS), default="encoder")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="of an encoder")
    parser.add_argument("--systems", nargs="+", default=[], help="ours; all if not given")
    parser.add_argument("--mix", default="lognormal", help="of an encoder's lengths")
    options = parser.parse_args(sys.argv[1:])
    context = compare.announce()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ge-before-")))
        scenario = SCENARIOS[options.scenario](folder, options)
        trees = {"before": stack.enter_context(checked_out(options.commit)), "after": ROOT}
        environment = {**FRESH, **scenario.environment}
        servers = {
            name: stack.enter_context(serve_tree(tree, scenario.repository, environment))
            for name, tree in trees.items()
        }
        process = stack.enter_context(LoadProcess(scenario.pools(servers["after"].http)))
        for system in (each for each in scenario.systems if each.ours):
            if options.systems and system.name not in options.systems:
                continue
            both = sides({name: server.systems([system])[0] for name, server in servers.items()})
            loads = scenario.loads(options.concurrency)
            warm(process, both, loads)
            turns = list(take_turns(process, both, loads, compare.pace_of(options)))
            found = cells(turns, {name: server.memory_mib() for name, server in servers.items()})
            compare.show(f"{system.name}: {options.commit} before, this tree after", found, None)
            write(f"before-{system.name}", found, context, options.output)


def sides(running: Mapping[str, System]) -> list[System]:
    """Return one system on two servers as `before`, and `after`, which is measured against it."""
    return [replace(each, name=name, ours=name == "after") for name, each in running.items()]


def _encoder(folder: Path, options: argparse.Namespace) -> compare.Scenario:
    chosen = [
        served
        for served in served_systems(options.precision, only=options.systems)
        if served.system.ours
    ]
    systems = [served.system for served in chosen]
    encoder = load_encoder(MINILM, folder)
    write_repository(folder / "models", chosen, encoder.files)
    drawn = sequences(encoder, [options.mix], options.seed)
    return compare.Scenario(
        name="encoder",
        repository=folder / "models",
        systems=systems,
        pools=lambda _: pools_of(systems, drawn, options.precision),
        traffic=[options.mix],
    )


def _sequences(folder: Path, _options: argparse.Namespace) -> compare.Scenario:
    return bench_sequences.scenario(folder)


def _fused(folder: Path, options: argparse.Namespace) -> compare.Scenario:
    return bench_fused.scenario(folder, options.seed)


SCENARIOS: Mapping[str, Callable[[Path, argparse.Namespace], compare.Scenario]] = {
    "encoder": _encoder,
    "sequences": _sequences,
    "fused": _fused,
}


if __name__ == "__main__":
    main()
