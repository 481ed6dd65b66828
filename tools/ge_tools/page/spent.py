"""Pictures of time: where a request's went, and how it was spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ge_tools.page.drawing import COLOURS, legend, tidy
from ge_tools.page.numbers import QUANTILES, HostLatency, RunLatency
from ge_tools.watch.models import EXECUTOR_PARTS, INSTANCE_PARTS, ModelNumbers

__all__ = ["draw_latencies", "draw_parts"]

MARKS = dict(zip(QUANTILES, ("o", "|", "D"), strict=True))
HOST, EXECUTOR = "requests, in the server", "runs, in the executor"


def draw_parts(figure: Any, models: Sequence[ModelNumbers]) -> None:
    """Draw two bars per model: what its instance did, and what the executor did meanwhile."""
    axes = figure.subplots()
    lines: list[str] = []
    labelled: set[str] = set()
    for model in models:
        for where, shown in (("instance", INSTANCE_PARTS), ("executor", EXECUTOR_PARTS)):
            left = 0.0
            for part in shown:
                axes.barh(
                    len(lines),
                    model.parts_ms[part],
                    left=left,
                    color=_colour(part),
                    alpha=0.35 if part == "wait" else 1.0,
                    label="" if part in labelled else part,
                )
                labelled.add(part)
                left += model.parts_ms[part]
            lines.append(f"{model.model}: {where}")
    axes.set_yticks(range(len(lines)), lines)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds per request")
    tidy(axes, along="x")
    legend(figure)


def draw_latencies(figure: Any, hosts: Sequence[HostLatency], runs: Sequence[RunLatency]) -> None:
    """Draw the spread of requests as the host tells it, and of runs as the executors tell it."""
    lines: list[tuple[str, Mapping[float, float], str]] = [
        (host.model, host.quantiles_ms, COLOURS[3]) for host in hosts if host.quantiles_ms
    ]
    first_run = len(lines)
    lines += [(run.model, run.whole_ms, COLOURS[0]) for run in runs]
    axes = figure.subplots()
    for line, (_, spread, colour) in enumerate(lines):
        values = [spread[share] for share in QUANTILES if share in spread]
        axes.hlines(line, values[0], values[-1], color=colour, linewidth=2, alpha=0.5)
        for share, mark in MARKS.items():
            if share in spread:
                axes.plot(spread[share], line, mark, color=colour, markersize=9 - 3 * (mark == "D"))
    for share, mark in MARKS.items():
        axes.plot([], [], mark, color="gray", label=f"p{100 * share:g}")
    for label, colour, there in ((HOST, COLOURS[3], first_run), (EXECUTOR, COLOURS[0], runs)):
        if there:
            axes.plot([], [], color=colour, linewidth=2, label=label)
    axes.set_yticks(range(len(lines)), [name for name, _, _ in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("milliseconds")
    tidy(axes, along="x")
    legend(figure)


def _colour(part: str) -> str:
    order = ("run", "queue", "stage", "split", "read", "plan")
    return "gray" if part == "wait" else COLOURS[order.index(part)]
