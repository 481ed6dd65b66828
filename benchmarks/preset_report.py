"""From windows of plain and preset configurations to the tables of docs/presets.md. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.figures import median_ratio

__all__ = ["PLAIN", "Memory", "Window", "memory_lines", "speed_lines"]

# The configuration that the presets are applied to.
PLAIN = "plain"
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One configuration under one load in one round.

    Attributes:
        load: what was sent; configurations are compared under the same one.
        answers: per second.
        refused: share of the requests.
        others_cpu: cores that the rest of this machine used meanwhile.
    """

    config: str
    load: str
    round_number: int
    answers: float
    p50_ms: float
    p99_ms: float
    refused: float
    others_cpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The highest memory of a server with one configuration, by role of its processes."""

    config: str
    bytes_by_role: Mapping[str, int]

    @property
    def executor(self) -> int:
        """Bytes of the executor."""
        return self.bytes_by_role.get("executor", 0)

    @property
    def all(self) -> int:
        """Bytes of all processes of the server."""
        return sum(self.bytes_by_role.values())


def speed_lines(windows: Sequence[Window]) -> Iterator[str]:
    """Yield a Markdown table: medians over the rounds, and median ratios to `PLAIN` of a round."""
    yield "| load | configuration | answers/s | p50 ms | p99 ms | refused |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for load in dict.fromkeys(window.load for window in windows):
        of = {
            config: [w for w in windows if (w.load, w.config) == (load, config)]
            for config in dict.fromkeys(window.config for window in windows)
        }
        for config, own in of.items():
            cells = [_compared(own, of[PLAIN], name) for name in ("answers", "p50_ms", "p99_ms")]
            refused = statistics.median(window.refused for window in own)
            yield f"| {load} | {config} | {' | '.join(cells)} | {refused:.0%} |"


def memory_lines(found: Sequence[Memory]) -> Iterator[str]:
    """Yield a Markdown table of memory, in MiB and as a ratio to `PLAIN`."""
    yield "| configuration | executor MiB | all processes MiB |"
    yield "| --- | ---: | ---: |"
    plain = next(memory for memory in found if memory.config == PLAIN)
    for memory in found:
        executor = _ratio(memory.executor / MIB, memory.executor / plain.executor)
        whole = _ratio(memory.all / MIB, memory.all / plain.all)
        yield f"| {memory.config} | {executor} | {whole} |"


def _compared(own: Sequence[Window], plain: Sequence[Window], name: str) -> str:
    mine, theirs = (
        {window.round_number: float(getattr(window, name)) for window in windows}
        for windows in (own, plain)
    )
    return _ratio(statistics.median(mine.values()), median_ratio(mine, theirs))


def _ratio(value: float, ratio: float) -> str:
    digits = 0 if value >= 100 else 1
    return f"{value:.{digits}f} ({ratio:.2f}x)"
