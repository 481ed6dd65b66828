"""Pictures of what came and what was made of it: rates, lengths, buckets, padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ge_tools.page.drawing import COLOURS, label_of, legend, over_time, tidy
from ge_tools.page.numbers import request_rates
from ge_tools.watch.models import ModelNumbers
from ge_tools.watch.readings import Reading

__all__ = ["bins", "draw_padding", "draw_rates", "draw_shapes", "shapes_height"]

MAX_BUCKETS = 8
# So that a few bars are not as thick as a page.
MIN_LINES = 3
# Inches, without and with lengths to show.
HEIGHTS = (1.4, 2.6)
REAL, RAN, LONGEST = "sent", "run", "if each batch were padded to its longest"


def bins(first: int, last: int) -> list[int]:
    """Return the bins that sizes are counted in, from one to another."""
    values, step = [0, 1, 2], 1
    while values[-1] < last:
        values.append(values[-1] + step)
        if values[-1] & (values[-1] - 1) == 0:
            step = values[-1] // 2
    return [value for value in values if first <= value <= last]


def draw_rates(
    figure: Any, readings: Sequence[Reading], models: Sequence[str], colours: Mapping[str, str]
) -> None:
    """Draw requests per second over time, a line for each model."""
    axes = figure.subplots()
    for model in models:
        rates = request_rates(readings, model)
        edges = [rates[0][0], *(until for _, until, _ in rates)]
        values = [rate for _, _, rate in rates]
        style = {"baseline": None, "color": colours[model], "linewidth": 2}
        axes.stairs(values, edges, label=label_of(model), **style)
    over_time(figure, [axes], ["requests per second"])


def shapes_height(models: Sequence[ModelNumbers]) -> float:
    """Return the height that `draw_shapes` needs, in inches."""
    return 0.2 + sum(HEIGHTS[bool(axis)] for _, axis in _lines(models))


def draw_shapes(figure: Any, models: Sequence[ModelNumbers], colours: Mapping[str, str]) -> None:
    """Draw per model the lengths of its rows, by axis, and beside them the buckets they ran in."""
    lines = _lines(models)
    heights = [HEIGHTS[bool(axis)] for _, axis in lines]
    cells = figure.subplots(
        len(lines), 2, squeeze=False, width_ratios=(3, 2), height_ratios=heights
    )
    for (model, axis), (left, right) in zip(lines, cells, strict=True):
        colour = colours[model.model]
        left.set_title(model.model)
        if axis:
            _lengths(left, axis, dict(model.sizes[axis]), colour)
        else:
            left.set_axis_off()
            left.text(0, 0.5, "no ragged axis", transform=left.transAxes)
        _buckets(right, model.buckets, colour)


def _lines(models: Sequence[ModelNumbers]) -> list[tuple[ModelNumbers, str]]:
    return [(model, axis) for model in models for axis in (list(model.sizes) or [""])]


def _lengths(axes: Any, axis: str, rows: Mapping[int, float], colour: str) -> None:
    shown = bins(min(rows), max(rows)) if rows else []
    total = sum(rows.values()) or 1.0
    lower = dict(zip(shown[1:], shown, strict=False))
    names = [_named(lower.get(up_to, up_to - 1) + 1, up_to) for up_to in shown]
    axes.bar(range(len(shown)), [100 * rows.get(b, 0.0) / total for b in shown], color=colour)
    crowded = len(shown) > 8  # noqa: PLR2004 - that many labels have room in a row
    axes.set_xticks(range(len(shown)), names, rotation=45 if crowded else 0, fontsize=8)
    axes.set_xlabel(f"{axis}, size of a row")
    axes.set_ylabel("share of rows, %")
    tidy(axes, along="y")


def _buckets(axes: Any, buckets: Sequence[tuple[str, float]], colour: str) -> None:
    shown = list(buckets[:MAX_BUCKETS])
    bars = axes.barh(range(len(shown)), [runs for _, runs in shown], color=colour, alpha=0.75)
    axes.bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
    axes.set_yticks(range(len(shown)), [name for name, _ in shown], fontsize=8)
    axes.set_ylim(max(len(shown), MIN_LINES) - 0.5, -0.5)
    axes.margins(x=0.15)
    more = len(buckets) - len(shown)
    axes.set_title(f"buckets, rows x sizes{f' ({more} more)' if more else ''}")
    axes.set_xlabel("runs")
    tidy(axes, along="x")


def draw_padding(figure: Any, models: Sequence[ModelNumbers]) -> None:
    """Draw per model what was sent, what ran, and what the plain way of padding would have run."""
    axes = figure.subplots()
    bars = [
        (REAL, [1.0 for _ in models], COLOURS[4]),
        (RAN, [model.padding or 0.0 for model in models], COLOURS[0]),
        (LONGEST, [model.longest or 0.0 for model in models], COLOURS[3]),
    ]
    for index, (label, values, colour) in enumerate(bars):
        places = [line + 0.27 * (index - 1) for line in range(len(models))]
        drawn = axes.barh(places, values, 0.25, color=colour, label=label)
        axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8)
    axes.set_yticks(range(len(models)), [model.model for model in models])
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("elements of ragged inputs, for each one that was sent")
    tidy(axes, along="x")
    legend(figure)


def _named(first: int, last: int) -> str:
    return str(last) if first >= last else f"{first}-{last}"
