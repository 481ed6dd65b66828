"""Figures as SVG that lies inside a page and takes the page's colours, light or dark."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

from ge_backend.errors import DeviceUnavailable

__all__ = [
    "COLOURS",
    "STYLE",
    "WIDTH_INCHES",
    "check_libraries",
    "colours_of",
    "label_of",
    "legend",
    "over_time",
    "svg",
    "tidy",
]

# Colours that people with any colour vision tell apart (Okabe and Ito, but for the last two), on
# white and on black.
COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00"),
    *("#56B4E9", "#CC79A7", "#999999", "#8C6D46"),
)
# Stands for the page's own text colour until the SVG is written.
INK = "#010203"
WIDTH_INCHES = 8.6
# About this many characters have room in a line of a legend, whose handles take a few each.
LINE_CHARACTERS, HANDLE_CHARACTERS = 105, 9
# For lines beyond these a figure is made higher, by inches for each.
LEGEND_LINES, LINE_INCHES = 2, 0.19
STYLE = {
    "svg.fonttype": "none",  # the page's own fonts
    "text.parse_math": False,  # a model's name may hold a $
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
}
INSTALL = "pip install 'triton-ge-backend[tools]'"


def check_libraries() -> None:
    """See that what draws and what writes the page are there, before a minute is spent watching.

    Raises:
        DeviceUnavailable: one of them is missing; says how to install it.
    """
    try:
        import jinja2
        import matplotlib as mpl
    except ImportError as error:
        raise DeviceUnavailable(
            f"the report is made with matplotlib and jinja2 ({error}); {INSTALL}"
        ) from error
    del jinja2, mpl


def svg(draw: Callable[[Any], None], height_inches: float, *, name: str) -> str:
    """Return what `draw` draws into a figure, as an SVG element.

    `name` tells its parts from those of other figures of the page.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0)
        draw(figure)
        for axes in figure.axes:
            axes.patch.set_alpha(0)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(text.getvalue())


def tidy(axes: Any, *, along: str) -> None:
    """Draw faint lines behind what is drawn, along one axis."""
    axes.set_axisbelow(True)
    axes.grid(axis=along, color=INK, alpha=0.15, linewidth=0.8)


def over_time(
    figure: Any, axes: Sequence[Any], labels: Sequence[str], end_s: float | None = None
) -> None:
    """Finish axes below each other that show the time of a recording, all of it or up to an end."""
    for each, label in zip(axes, labels, strict=True):
        each.set_ylim(bottom=0)
        each.set_ylabel(label)
        tidy(each, along="y")
    axes[-1].set_xlim(0, end_s)
    axes[-1].set_xlabel("seconds since the recording began")
    legend(figure)


def label_of(name: str) -> str:
    """Return a name as a label: one that begins with _ matplotlib leaves out of legends."""
    return f" {name}" if name.startswith("_") else name


def legend(figure: Any) -> None:
    """Write what has a label above the axes, in as many columns as have room.

    The figure is as much higher as a long one needs, so that the axes keep their height.
    """
    labels = [label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]]
    if not labels:
        return
    widest = max(len(label) for label in labels) + HANDLE_CHARACTERS
    columns = min(len(labels), max(1, LINE_CHARACTERS // widest))
    beyond = max(0, math.ceil(len(labels) / columns) - LEGEND_LINES)
    figure.set_figheight(figure.get_figheight() + LINE_INCHES * beyond)
    figure.legend(loc="outside upper left", ncols=columns, fontsize="small")


def colours_of(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each name; the same one for the same list."""
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}


def _inline(text: str) -> str:
    """Return the element without what only a file needs, in the page's colour and width."""
    element = text[text.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>\s*", "", element, flags=re.DOTALL)
    element = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", element, count=1)
    element = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", element, count=1)
    return element.replace(INK, "currentColor")
