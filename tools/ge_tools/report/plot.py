"""A picture of what `ge-backend tune` found: traffic, sizes now and proposed, and what is saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ge_backend.serving.learning.boundaries import Expectation
from ge_backend.serving.learning.tuning import Proposal
from ge_tools.report.picture import picture
from ge_tools.report.tuning import Tuning

__all__ = ["write_plot"]

# Colours that people with any colour vision tell apart (Okabe and Ito).
TRAFFIC, NOW, PROPOSED, REAL = "#B8C4CE", "#D55E00", "#0072B2", "#4D4D4D"
MAX_BARS = 80
BARS_PER_OCTAVE = 12
# Sizes that differ by more are drawn on a logarithmic axis.
LOGARITHMIC_FROM = 32


def write_plot(path: Path, tuning: Tuning) -> None:
    """Write a PNG: per axis its traffic with both sets of sizes, and the cost by number of sizes.

    Raises:
        ConfigError: the file cannot be written.
        DeviceUnavailable: matplotlib is missing.
    """
    count = len(tuning.proposals)
    with picture(path, 4.6 * count) as figure:
        cells = figure.subplots(count, 2, squeeze=False, width_ratios=(2, 1))
        figure.suptitle(f"Bucket sizes of model {tuning.model}", fontsize=13, fontweight="bold")
        for proposal, (left, right) in zip(tuning.proposals, cells, strict=True):
            _traffic(left, proposal)
            _costs(right, proposal, measured=tuning.measured)


def _traffic(axes: Any, proposal: Proposal) -> None:
    """Draw the shares of sizes, and the boundaries now and proposed as lines through them."""
    now, best = proposal.now, proposal.best
    edges, logarithmic = _edges(proposal)
    points = proposal.traffic.points()
    shares, _ = np.histogram(
        [size for size, _ in points], edges, weights=[count for _, count in points]
    )
    heights = 100.0 * shares / np.diff(edges) / proposal.traffic.total
    label = f"traffic: {proposal.traffic.total} rows"
    axes.stairs(heights, edges, fill=True, color=TRAFFIC, label=label)
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlim(edges[0], edges[-1])
    lines = axes.get_xaxis_transform()
    axes.vlines(best.boundaries, 0, 1, PROPOSED, transform=lines, label="proposed")
    # Dashes come last: where both have a size, both colours are seen.
    axes.vlines(now.boundaries, 0, 1, NOW, linestyles="dashed", transform=lines, label="now")
    axes.set_title(
        f"{proposal.axis}: padding {now.expected.padding:.1%} now, "
        f"{best.expected.padding:.1%} proposed; {proposal.saved(best):.1%} of the cost saved",
        fontsize=11,
    )
    axes.set_xlabel(f"size on axis {proposal.axis}")
    axes.set_ylabel("share of rows per size, %")
    axes.legend(loc="upper right", framealpha=1.0, fontsize=9)


def _edges(proposal: Proposal) -> tuple[list[float], bool]:
    """Return the edges of the bars, and whether they widen with the size, as on a log axis.

    Edges lie between whole numbers, so that no bar is empty for want of a number in it.
    """
    boundaries = (*proposal.now.boundaries, *proposal.best.boundaries)
    low = max(min(proposal.traffic.points()[0][0], *boundaries), 1)
    high = max(proposal.traffic.largest, *boundaries)
    logarithmic = high / low >= LOGARITHMIC_FROM
    edges = [low - 0.5]
    while edges[-1] < high:
        span = edges[-1] / BARS_PER_OCTAVE if logarithmic else (high - low) / MAX_BARS
        edges.append(edges[-1] + max(math.ceil(span), 1))
    return [*edges, edges[-1] + (edges[-1] - edges[-2])], logarithmic


def _costs(axes: Any, proposal: Proposal, *, measured: bool) -> None:
    """Draw the cost per row by the number of sizes, each point with the padding that it has."""
    scale, unit = (1e3, "µs") if measured else (1.0, "elements")
    options = sorted([proposal.best, *proposal.others], key=lambda option: len(option.boundaries))
    counts = [len(option.boundaries) for option in options]
    _points(axes, counts, [o.expected for o in options], scale, color=PROPOSED, marker="o")
    axes.plot([], [], color=PROPOSED, marker="o", label="best for so many sizes")
    chosen = proposal.best
    axes.plot(
        len(chosen.boundaries),
        chosen.expected.cost / scale,
        color=PROPOSED,
        marker="o",
        markersize=13,
        fillstyle="none",
        linestyle="none",
        label="proposed",
    )
    now = proposal.now
    _points(axes, [len(now.boundaries)], [now.expected], scale, color=NOW, marker="D")
    axes.plot([], [], color=NOW, marker="D", linestyle="none", label="now")
    ideal = proposal.unpadded.cost / scale
    axes.axhline(ideal, color=REAL, linestyle="dotted", label="without any padding")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({*counts, len(now.boundaries)}))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    axes.margins(x=0.12)
    # From zero: what overhead leaves to be saved is seen as it is.
    axes.set_ylim(0, 1.15 * max(o.expected.cost for o in (now, *options)) / scale)
    axes.set_title("cost by number of sizes (labels: padding)", fontsize=11)
    axes.set_xlabel("sizes on this axis")
    axes.set_ylabel(f"expected cost of a row, {unit}")
    axes.legend(loc="lower center", fontsize=9)


def _points(
    axes: Any,
    counts: Sequence[int],
    expected: Sequence[Expectation],
    scale: float,
    *,
    color: str,
    marker: str,
) -> None:
    """Draw points, each with its padding beside it."""
    costs = [expectation.cost / scale for expectation in expected]
    axes.plot(counts, costs, color=color, marker=marker)
    for count, cost, expectation in zip(counts, costs, expected, strict=True):
        axes.annotate(
            f"{expectation.padding:.0%}",
            (count, cost),
            xytext=(7, 7),
            textcoords="offset points",
            color=color,
            fontsize=9,
        )
