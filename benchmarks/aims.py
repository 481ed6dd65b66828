"""What the backend aims at beside its rivals, and which of that a run has met. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.poisson import Poisson
from benchmarks.results import CEILING, Result
from benchmarks.systems import ALL_OURS, CPP_ONNX

__all__ = ["Aim", "aims", "verdicts"]

BEST_P99 = "the best rival's p99 by ours"
# rival -> how many times its throughput, by requests in flight.
FLOAT32: Mapping[str, Mapping[int, float]] = {
    CPP_ONNX: {1: 1.0, 8: 1.0, 32: 1.1, 64: 1.1},
    "packed": {1: 1.0, 8: 1.0, 32: 1.0, 64: 1.0},
    "one_forward": {1: 1.0},
    "pad_longest": {1: 1.0, 32: 3.5, 64: 3.5},
    CEILING: {64: 0.9},
}
BFLOAT16: Mapping[str, Mapping[int, float]] = {
    **FLOAT32,
    CPP_ONNX: {1: 1.0, 32: 2.4, 64: 2.4},
    "packed": {1: 1.0, 32: 1.4, 64: 1.4},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """One aim, and what one of our systems did.

    Attributes:
        cell: the mix, and how requests came.
        what: the rival, or what is compared.
        least, found: how many times the rival's throughput; for p99, how many times ours it is.
    """

    cell: str
    ours: str
    what: str
    least: float
    found: float

    @property
    def met(self) -> bool:
        """Whether what was found is as much as what is aimed at."""
        return self.found >= self.least


def aims(results: Iterable[Result], offered: Iterable[Poisson] = (), *, bf16: bool) -> list[Aim]:
    """Return every aim that these results can say something about, for each of our systems."""
    cells: dict[tuple[str, int], dict[str, Result]] = {}
    for result in results:
        cells.setdefault((result.mix, result.concurrency), {})[result.system] = result
    mixes: dict[str, dict[str, float | None]] = {}
    for one in offered:
        mixes.setdefault(one.mix, {})[one.system] = one.p99_ms
    found: list[Aim] = []
    for (mix, concurrency), cell in cells.items():
        name = f"{mix}, {concurrency} in flight"
        found += _throughputs(name, concurrency, cell, BFLOAT16 if bf16 else FLOAT32)
        found += _latencies(name, {system: result.p99_ms for system, result in cell.items()})
    for mix, latencies in mixes.items():
        found += _latencies(f"{mix}, Poisson", latencies)
    return found


def verdicts(found: Sequence[Aim]) -> str:
    """Return a table: an aim per line, a column for each of our systems."""
    columns = [name for name in ALL_OURS if any(aim.ours == name for aim in found)]
    lines: dict[str, dict[str, str]] = {}
    for aim in found:
        line = lines.setdefault(f"{aim.cell}: {aim.least:.1f}x {aim.what}", {})
        line[aim.ours] = f"{aim.found:.2f} {'met' if aim.met else 'NOT met'}"
    for name in columns:
        own = [aim.met for aim in found if aim.ours == name]
        lines.setdefault("all", {})[name] = f"{sum(own)} of {len(own)} met"
    width = max(map(len, lines), default=0)
    head = "".join(f"{name:>16}" for name in columns)
    rows = [
        f"{line:{width}}" + "".join(f"{cells.get(name, ''):>16}" for name in columns)
        for line, cells in lines.items()
    ]
    return "\n".join([f"{'aim':{width}}{head}", *rows])


def _throughputs(
    name: str,
    concurrency: int,
    cell: Mapping[str, Result],
    wanted: Mapping[str, Mapping[int, float]],
) -> Iterator[Aim]:
    for ours in filter(cell.__contains__, ALL_OURS):
        for rival, least in wanted.items():
            if rival in cell and concurrency in least:
                ratio = cell[ours].over(cell[rival])
                yield Aim(cell=name, ours=ours, what=rival, least=least[concurrency], found=ratio)


def _latencies(name: str, p99_ms: Mapping[str, float | None]) -> Iterator[Aim]:
    rivals = [value for system, value in p99_ms.items() if system not in ALL_OURS and value]
    for ours in ALL_OURS:
        own = p99_ms.get(ours)
        if own and rivals:
            ratio = min(rivals) / own
            yield Aim(cell=name, ours=ours, what=BEST_P99, least=1.0, found=ratio)
