"""Pictures of an executor: the runs of its lanes, how busy they were, and its workspace pool."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ge_backend.executor.protocol.messages import PastRun
from ge_backend.model.config.sizes import unit_of
from ge_tools.page.drawing import COLOURS, label_of, legend, over_time, tidy
from ge_tools.watch.executors import DeviceRuns
from ge_tools.watch.readings import Reading

__all__ = ["busiest", "busy_lanes", "draw_busy", "draw_lanes", "draw_pool", "pooled", "waiting"]

SHOWN_RUNS = 50
BUSY_BINS = 120
# A bar of at least this share of the width has its bucket written into it.
ROOMY = 0.035
PREPARATION = "preparation"


def busiest(runs: Sequence[PastRun], at_most: int = SHOWN_RUNS) -> tuple[int, int]:
    """Return from when to when to show runs, so that about `at_most` of the densest are seen.

    Nanoseconds of CLOCK_MONOTONIC; the length is 1, 2 or 5 times a power of ten.
    """
    begin_ns = min(run.started_ns for run in runs)
    end_ns = max(run.ended_ns for run in runs)
    if len(runs) <= at_most:
        return begin_ns, end_ns
    length_ns = _round_down((end_ns - begin_ns) * at_most / len(runs))
    starts = sorted(run.started_ns for run in runs)
    best, most, left = begin_ns, 0, 0
    for right, start in enumerate(starts):
        while starts[left] < start - length_ns:
            left += 1
        if right - left + 1 > most:
            best, most = starts[left], right - left + 1
    return best, best + length_ns


def busy_lanes(runs: Sequence[PastRun], begin_ns: int, end_ns: int, num_bins: int) -> list[float]:
    """Return how many lanes ran on average in each of some equal parts of a time."""
    width = (end_ns - begin_ns) / num_bins
    busy = [0.0] * num_bins
    for run in runs:
        first = max(0, int((run.started_ns - begin_ns) / width))
        last = min(num_bins - 1, int((run.ended_ns - begin_ns) / width))
        for index in range(first, last + 1):
            low = max(run.started_ns, begin_ns + index * width)
            high = min(run.ended_ns, begin_ns + (index + 1) * width)
            busy[index] += max(0.0, high - low) / width
    return busy


def waiting(runs: Sequence[PastRun], begin_ns: int, end_ns: int) -> tuple[list[int], list[int]]:
    """Return how many runs waited, and the times between which they did, as for a stairs plot."""
    changes: dict[int, int] = {begin_ns: 0, end_ns: 0}
    for run in runs:
        came, began = max(run.came_ns, begin_ns), min(run.started_ns, end_ns)
        if came < began:
            changes[came] = changes.get(came, 0) + 1
            changes[began] = changes.get(began, 0) - 1
    times = sorted(changes)
    counts, total = [], 0
    for time in times[:-1]:
        total += changes[time]
        counts.append(total)
    return counts, times


def draw_lanes(figure: Any, device: DeviceRuns, colours: Mapping[str, str]) -> None:
    """Draw the runs of the busiest moment, a line for each lane, and below how many waited.

    A bar is as high as its bucket has rows; the solid part of it is as high as it had real ones.
    """
    begin_ns, end_ns = busiest(device.runs)
    shown = [run for run in device.runs if run.ended_ns > begin_ns and run.started_ns < end_ns]
    lanes = sorted({run.lane for run in device.runs})
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(max(2, len(lanes)), 1))
    for run in shown:
        _bar(top, run, lanes.index(run.lane), begin_ns, end_ns, colours)
    top.set_yticks([index + 0.4 for index in range(len(lanes))], lanes)
    top.set_ylim(len(lanes) - 0.1, -0.1)
    top.set_title(f"{device.device}: {_length(end_ns - begin_ns)}, when most ran")
    named = [name for name in colours if any(run.model == name for run in shown)]
    for name in named:
        top.bar(0, 0, color=colours[name], label=label_of(name))
    counts, times = waiting(device.runs, begin_ns, end_ns)
    edges = [(time - begin_ns) / 1e6 for time in times]
    bottom.stairs(counts, edges, color=COLOURS[3], fill=True, alpha=0.6)
    bottom.set_ylabel("waiting")
    bottom.set_xlabel("milliseconds")
    bottom.set_ylim(0, max(1, *counts))
    bottom.yaxis.get_major_locator().set_params(integer=True)
    bottom.set_xlim(0, (end_ns - begin_ns) / 1e6)
    tidy(bottom, along="y")
    legend(figure)


def _bar(
    axes: Any, run: PastRun, line: int, begin_ns: int, end_ns: int, colours: Mapping[str, str]
) -> None:
    left, width = (run.started_ns - begin_ns) / 1e6, (run.ended_ns - run.started_ns) / 1e6
    colour = colours.get(run.model, "gray")
    filled = run.real_rows / run.bucket[0] if run.bucket and run.bucket[0] else 0.0
    axes.barh(line, width, 0.8, left=left, align="edge", color=colour, alpha=0.3)
    axes.barh(line + 0.8 * (1 - filled), width, 0.8 * filled, left=left, align="edge", color=colour)
    if run.error:
        axes.plot(left + width / 2, line + 0.4, "x", color="red")
    if width >= ROOMY * (end_ns - begin_ns) / 1e6:
        label = "x".join(map(str, run.bucket)) or PREPARATION
        middle = (left + width / 2, line + 0.4)
        axes.annotate(label, middle, ha="center", va="center", fontsize=7, clip_on=True)


def draw_busy(figure: Any, devices: Sequence[DeviceRuns], begin_ns: int, end_ns: int) -> None:
    """Draw how many lanes of each device ran, over the whole recording."""
    axes = figure.subplots()
    seconds = (end_ns - begin_ns) / 1e9
    edges = [seconds * index / BUSY_BINS for index in range(BUSY_BINS + 1)]
    for index, device in enumerate(devices):
        busy = busy_lanes(device.runs, begin_ns, end_ns, BUSY_BINS)
        colour = COLOURS[index % len(COLOURS)]
        axes.stairs(busy, edges, color=colour, fill=True, alpha=0.5, label=device.device)
    over_time(figure, [axes], ["busy lanes"], seconds)


def pooled(readings: Sequence[Reading]) -> list[str]:
    """Return the devices that have a workspace pool."""
    return [d for d, size in readings[-1].gauge("ge_workspace_pool_bytes").items() if size]


def draw_pool(figure: Any, readings: Sequence[Reading]) -> None:
    """Draw how much of each pool runs used, at moments, beside its peak and its size."""
    axes = figure.subplots()
    times = [reading.at_s - readings[0].at_s for reading in readings]
    devices = pooled(readings)
    largest = max(readings[-1].gauge("ge_workspace_pool_bytes").values())
    unit, divisor = unit_of(largest)
    for index, device in enumerate(devices):
        colour = COLOURS[index % len(COLOURS)]
        for name, label, style in (
            ("ge_workspace_used_bytes", "used", "-"),
            ("ge_workspace_peak_bytes", "peak since its start", "--"),
            ("ge_workspace_pool_bytes", "pool", ":"),
        ):
            values = [reading.gauge(name).get(device, 0.0) / divisor for reading in readings]
            axes.plot(times, values, style, color=colour, label=f"{device}: {label}")
    over_time(figure, [axes], [unit], times[-1])


def _round_down(value: float) -> int:
    """Return the largest 1, 2 or 5 times a power of ten that is not more."""
    power = 10 ** math.floor(math.log10(max(1.0, value)))
    return int(power * max(step for step in (1, 2, 5) if step * power <= max(1.0, value)))


def _length(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.3g} ms" if nanoseconds < 1e9 else f"{nanoseconds / 1e9:.3g} s"  # noqa: PLR2004 - a second
