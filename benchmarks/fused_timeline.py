"""One request's timeline: through the fused ensemble, the host's ensemble, and three client calls.

`python -m benchmarks.fused_timeline FILE.png` draws the request of median latency of each way. The
client's clock and the executor's are the same one, CLOCK_MONOTONIC: what is drawn inside a call is
when the executor, which keeps its last runs, had the step waiting and running. The rest of a call
is the server, its stubs and the way between them.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench_fused import STEPS, draw_texts, scripts, write_models
from benchmarks.harness.compare import announce
from benchmarks.harness.pool import Script
from benchmarks.harness.requests import asked, connect
from benchmarks.harness.servers import Running, serve
from ge_backend.executor.protocol.messages import PastRun
from ge_tools.watch.executors import RunWatch

__all__ = ["Timeline", "draw", "lines", "main", "median"]

WAYS = ("fused", "host_ensemble", "three_calls")  # those whose runs an executor's timeline shows
COLOURS = dict(zip(STEPS, ("#E69F00", "#0072B2", "#009E73"), strict=True))
CALL, WAITING = "#DDE3E9", "#D55E00"
WORDS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One request of one way: its calls of the server, and what executors ran for it, in order.

    Attributes:
        calls: (sent, answered), CLOCK_MONOTONIC nanoseconds.
    """

    way: str
    calls: Sequence[tuple[int, int]]
    runs: Sequence[PastRun]

    @property
    def began_ns(self) -> int:
        """When the first call was sent."""
        return self.calls[0][0]

    @property
    def latency_ms(self) -> float:
        """From the first call to the last answer."""
        return (self.calls[-1][1] - self.began_ns) / 1e6


def main() -> None:
    """Measure, print, draw."""
    options = _parse(sys.argv[1:])
    announce()
    text = next(text for text in draw_texts(1) if len(text.split()) == WORDS)
    with (
        tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary,
        serve(write_models(Path(temporary)), {"GE_WARMUP": "on"}) as server,
    ):
        found = _measure(server, text, options.repeats)
    chosen = [median([timeline for timeline in found if timeline.way == way]) for way in WAYS]
    print("\n".join(lines(chosen)))
    _write(chosen, options.picture)
    print(f"wrote {options.picture}", file=sys.stderr)


def median(timelines: Sequence[Timeline]) -> Timeline:
    """Return the one of median latency: a request that was, not a mean of several."""
    middle = statistics.median_low(timeline.latency_ms for timeline in timelines)
    return next(timeline for timeline in timelines if timeline.latency_ms == middle)


def lines(timelines: Sequence[Timeline]) -> list[str]:
    """Return the table: milliseconds, in all, in each step's runs, and outside of the executor."""
    table = [f"{'way':>14} {'ms':>7} " + " ".join(f"{step:>15}" for step in STEPS) + "    rest"]
    for timeline in timelines:
        spent = [
            sum(run.ended_ns - run.came_ns for run in timeline.runs if _step(run) == step) / 1e6
            for step in STEPS
        ]
        rest = timeline.latency_ms - sum(spent)
        columns = " ".join(f"{ms:>15.2f}" for ms in spent)
        table.append(f"{timeline.way:>14} {timeline.latency_ms:>7.2f} {columns} {rest:>7.2f}")
    return table


def draw(figure: Any, timelines: Sequence[Timeline]) -> None:
    """Draw a line per way: its calls, and inside them the steps' waiting and running."""
    axes = figure.subplots()
    for line, timeline in enumerate(timelines):
        for sent, answered in timeline.calls:
            _bar(axes, line, 0.8, (sent, answered), timeline, CALL)
        for run in timeline.runs:
            _bar(axes, line, 0.44, (run.came_ns, run.started_ns), timeline, WAITING)
            _bar(axes, line, 0.44, (run.started_ns, run.ended_ns), timeline, COLOURS[_step(run)])
        label = f"{timeline.latency_ms:.2f} ms"
        place = (timeline.latency_ms, line)
        axes.annotate(label, place, (5, 0), textcoords="offset points", va="center")
    for label, colour in {
        "a call of the server": CALL,
        "waits in the executor": WAITING,
        **{f"runs {step}": colour for step, colour in COLOURS.items()},
    }.items():
        axes.bar(0, 0, color=colour, label=label)
    axes.set_yticks(range(len(timelines)), [timeline.way for timeline in timelines])
    axes.set_ylim(len(timelines) - 0.5, -0.5)
    axes.set_xlim(0, 1.12 * max(timeline.latency_ms for timeline in timelines))
    axes.set_xlabel("milliseconds since the client sent the text")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper left", ncols=5, frameon=False, fontsize="small")


def _bar(
    axes: Any, line: int, height: float, span: tuple[int, int], timeline: Timeline, colour: str
) -> None:
    left, right = ((at - timeline.began_ns) / 1e6 for at in span)
    axes.barh(line, right - left, height, left=left, color=colour)


def _step(run: PastRun) -> str:
    return run.model.rpartition("/")[2]


def _measure(server: Running, text: str, repeats: int) -> list[Timeline]:
    """Send the text so often each way, in turns; return each request with its runs."""
    watch = RunWatch(server.metrics)
    with connect(server.http) as sock:
        made, _ = scripts(sock, text)
        calls = [(way, _sent(sock, made[way])) for _ in range(repeats) for way in WAYS]
    watch.look()
    runs = [run for device in watch.close() for run in device.runs if run.bucket]
    return [
        Timeline(way=way, calls=spans, runs=[run for run in runs if _within(run, spans)])
        for way, spans in calls
    ]


def _within(run: PastRun, spans: Sequence[tuple[int, int]]) -> bool:
    return spans[0][0] <= run.came_ns and run.ended_ns <= spans[-1][1]


def _sent(sock: socket.socket, script: Script) -> list[tuple[int, int]]:
    """Send the calls of one text; return when each was sent and answered."""
    spans = []
    for request in script:
        sent = time.monotonic_ns()
        asked(sock, request)
        spans.append((sent, time.monotonic_ns()))
    return spans


def _write(timelines: Sequence[Timeline], path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    figure = Figure(figsize=(9, 2.8), layout="constrained")
    draw(figure, timelines)
    figure.savefig(path, dpi=130)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fused_timeline", description=__doc__)
    parser.add_argument("picture", type=Path, help="a PNG to write")
    parser.add_argument("--repeats", type=int, default=101, help="requests of each way")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
