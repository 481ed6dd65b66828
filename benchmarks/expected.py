"""What a quick run is expected to show, as ratios within one run, and what has moved. Pure.

Kept in `benchmarks/expected.json`: `engine, processor` -> `mix, in flight, ours over another` ->
the throughput of one of our systems divided by that of one that is not. Ratios of systems that take
turns say the same on a slower machine of the same kind; milliseconds do not, and another processor
has other engines ahead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.results import Result
from benchmarks.systems import ALL_OURS

__all__ = ["FILE", "expected_of", "keep", "moved", "ratios"]

FILE = Path(__file__).parent / "expected.json"
# Rounds of one run differ by less than this on a quiet machine.
TOLERANCE = 0.2


def ratios(results: Iterable[Result]) -> dict[str, float]:
    """Return the throughput of each of our systems over each other one's, by cell."""
    cells: dict[str, list[Result]] = {}
    for result in results:
        cells.setdefault(f"{result.mix}, {result.concurrency} in flight", []).append(result)
    return {
        f"{cell}, {ours.system} over {other.system}": round(ours.over(other), 2)
        for cell, found in cells.items()
        for ours in found
        if ours.system in ALL_OURS
        for other in found
        if other.system not in ALL_OURS
    }


def moved(found: Mapping[str, float], expected: Mapping[str, float]) -> list[str]:
    """Return a line for each ratio that is not as expected, the worst first, or not there."""
    lines = []
    for cell, ratio in found.items():
        if cell in expected:
            change = ratio / expected[cell]
            if not 1 - TOLERANCE <= change <= 1 / (1 - TOLERANCE):
                way = "worse" if change < 1 else "better"
                lines.append(
                    (change, f"{way}: {cell}: {ratio:.2f}x, expected {expected[cell]:.2f}x")
                )
    gone = [f"gone: {cell}: expected {expected[cell]:.2f}x" for cell in expected.keys() - found]
    return [line for _, line in sorted(lines)] + sorted(gone)


def expected_of(engine: str, processor: str, file: Path = FILE) -> dict[str, float]:
    """Return what is expected of an engine on a processor; empty where nothing is."""
    known: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.is_file() else {}
    return known.get(f"{engine}, {processor}", {})


def keep(engine: str, processor: str, found: Mapping[str, float], file: Path = FILE) -> None:
    """Write what was found as what is expected of this engine there from now on."""
    known = json.loads(file.read_text()) if file.is_file() else {}
    kept = {**known, f"{engine}, {processor}": dict(found)}
    file.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
