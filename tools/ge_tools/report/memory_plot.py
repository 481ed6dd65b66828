"""A picture of a memory plan: ranges in the pool with their overlaps, and weights and buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ge_backend.device.base import Range
from ge_backend.errors import ConfigError
from ge_backend.model.config.sizes import format_bytes, unit_of
from ge_tools.model.demand import Demand
from ge_tools.report.memory import DevicePlan, Repository
from ge_tools.report.picture import picture

__all__ = ["write_memory_plot"]

# Colours that people with any colour vision tell apart (Okabe and Ito).
OWN, SHARED, MISSING, WEIGHTS = "#0072B2", "#E69F00", "#D55E00", "#4D4D4D"
CACHES, BUFFERS = "#009E73", "#56B4E9"
LEGEND = {
    "workspace of one model": OWN,
    "workspace of several, which take turns": SHARED,
    "what there is too little": MISSING,
    "weights": WEIGHTS,
    "caches of text": CACHES,
    "io buffers": BUFFERS,
}
BAR = 0.62
# A text goes into a bar of at least this share of the axis, else beside it.
ROOMY = 0.3
MAX_NAMES = 2


def write_memory_plot(path: Path, repository: Repository) -> None:
    """Write a PNG: per device the ranges in its pool, and beside them weights and buffers.

    Raises:
        ConfigError: the file cannot be written, or no model could be loaded.
        DeviceUnavailable: matplotlib is missing.
    """
    if not repository.devices:
        raise ConfigError("there is nothing to plot: no model could be loaded")
    heights = [1.6 + 0.42 * len(memory.demands) for memory in repository.devices]
    with picture(path, sum(heights) + 0.4) as figure:
        from matplotlib.patches import Patch

        cells = figure.subplots(
            len(heights), 2, squeeze=False, width_ratios=(3, 2), height_ratios=heights, sharey="row"
        )
        for memory, (left, right) in zip(repository.devices, cells, strict=True):
            _workspace(left, memory)
            _fixed(right, memory)
        handles = [Patch(color=color, label=label) for label, color in LEGEND.items()]
        place = {"loc": "outside lower center", "ncols": len(handles)}
        figure.legend(handles=handles, frameon=False, **place)


def _workspace(axes: Any, memory: DevicePlan) -> None:
    """Draw each model's range, and in other colours what it shares and what it lacks."""
    places = [_drawn(demand, memory) for demand in memory.demands]
    end = max([1, memory.pool_bytes, *(place.end for place in places)])
    unit, divisor = unit_of(end)
    for line, (demand, place) in enumerate(zip(memory.demands, places, strict=True)):
        _bar(axes, line, place, divisor, OWN)
        for part in _shared(demand, memory):
            _bar(axes, line, part, divisor, SHARED)
        if memory.pool_bytes and place.end > memory.pool_bytes:
            beyond = Range(offset=memory.pool_bytes, nbytes=place.end - memory.pool_bytes)
            _bar(axes, line, beyond, divisor, MISSING)
        inside = place.nbytes > ROOMY * end
        axes.annotate(
            _words(demand, memory),
            ((place.offset if inside else place.end) / divisor, line),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color="white" if inside and not memory.plan.waits_for(demand.model) else "black",
            fontsize=9,
        )
    if memory.pool_bytes:
        axes.axvline(memory.pool_bytes / divisor, color="black", linestyle="dashed", linewidth=1)
    axes.set_xlim(0, 1.02 * end / divisor)
    axes.set_ylim(len(places) - 0.4, -0.6)
    axes.set_yticks(range(len(places)), [demand.model for demand in memory.demands])
    pool = f"a pool of {format_bytes(memory.pool_bytes)}" if memory.pool_bytes else "no pool"
    _dress(axes, f"{_summary(memory)}\nworkspace, {pool}", unit)


def _fixed(axes: Any, memory: DevicePlan) -> None:
    """Draw what each model holds all the time."""
    held = [(d.weights_bytes, d.cache_bytes, d.io_bytes or 0) for d in memory.demands]
    unit, divisor = unit_of(max(map(sum, held)))
    for line, sizes in enumerate(held):
        for at, (nbytes, colour) in enumerate(zip(sizes, (WEIGHTS, CACHES, BUFFERS), strict=True)):
            place = Range(offset=sum(sizes[:at]), nbytes=nbytes)
            _bar(axes, line, place, divisor, colour)
    axes.tick_params(labelleft=False)
    _dress(axes, "held all the time", unit)


def _dress(axes: Any, title: str, unit: str) -> None:
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(unit)
    axes.set_axisbelow(True)
    axes.grid(axis="x", alpha=0.4)


def _bar(axes: Any, line: int, place: Range, divisor: int, color: str) -> None:
    axes.barh(line, place.nbytes / divisor, BAR, left=place.offset / divisor, color=color)


def _drawn(demand: Demand, memory: DevicePlan) -> Range:
    """Return where a bar is drawn: at its place in the pool, else from 0 on."""
    place = memory.plan.ranges.get(demand.model) if memory.pool_bytes else None
    return place or Range(offset=0, nbytes=demand.workspace_bytes)


def _shared(demand: Demand, memory: DevicePlan) -> list[Range]:
    """Return the parts of a range that lie in another's, too."""
    ranges = memory.plan.ranges
    parts = []
    for name in memory.plan.waits_for(demand.model):
        place, other = ranges[demand.model], ranges[name]
        begin, end = max(place.offset, other.offset), min(place.end, other.end)
        parts.append(Range(offset=begin, nbytes=end - begin))
    return parts


def _words(demand: Demand, memory: DevicePlan) -> str:
    if not demand.workspace_bytes:
        return "not known before it runs"
    text = format_bytes(demand.workspace_bytes)
    others = memory.plan.waits_for(demand.model)
    if len(others) > MAX_NAMES:
        text += f", in turn with {len(others)} others"
    elif others:
        text += f", in turn with {' and '.join(others)}"
    missing = [s.missing_bytes for s in memory.plan.shortages if s.holder == demand.model]
    return text + "".join(f", {format_bytes(nbytes)} too much" for nbytes in missing)


def _summary(memory: DevicePlan) -> str:
    text = f"{memory.device}: {format_bytes(memory.needed_bytes)} in all"
    if memory.total_bytes:
        text += f" of {format_bytes(memory.total_bytes)}"
    if memory.missing_bytes:
        text += f", {format_bytes(memory.missing_bytes)} too little"
    return text
