"""Pictures of text generation: tokens over time, and the cache that texts share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ge_tools.page.drawing import label_of, over_time
from ge_tools.watch.readings import Reading
from ge_tools.watch.text import text_lines

__all__ = ["draw_cache", "draw_tokens"]


def draw_tokens(figure: Any, readings: Sequence[Reading], colours: Mapping[str, str]) -> None:
    """Draw the tokens per second of each model: drawn ones above, those of prompts below."""
    axes = figure.subplots(2, 1, sharex=True)
    begin_s = readings[0].at_s
    edges = [reading.at_s - begin_s for reading in readings]
    between = [{t.model: t for t in text_lines(a, b)} for a, b in pairwise(readings)]
    for model in sorted({name for lines in between for name in lines}):
        lines = [found.get(model) for found in between]
        drawn = [line.tokens_per_s if line else 0.0 for line in lines]
        taken = [line.prompt_tokens_per_s if line else 0.0 for line in lines]
        style = {"baseline": None, "color": colours[model], "linewidth": 2}
        axes[0].stairs(drawn, edges, label=label_of(model), **style)
        axes[1].stairs(taken, edges, **style)
    over_time(figure, axes, ["tokens/s drawn", "tokens/s of prompts"], edges[-1])


def draw_cache(figure: Any, readings: Sequence[Reading], colours: Mapping[str, str]) -> None:
    """Draw how much of each model's cache is in use, and below how many texts run and wait."""
    axes = figure.subplots(2, 1, sharex=True)
    begin_s = readings[0].at_s
    looks = [
        (reading.at_s - begin_s, {t.model: t for t in text_lines(reading, reading)})
        for reading in readings
    ]
    for model in sorted({name for _, lines in looks for name in lines}):
        seen = [(at_s, lines[model]) for at_s, lines in looks if model in lines]
        times = [at_s for at_s, _ in seen]
        style = {"color": colours[model], "linewidth": 2}
        shares = [100 * (line.cache or 0.0) for _, line in seen]
        axes[0].plot(times, shares, label=label_of(model), **style)
        axes[1].plot(times, [line.running for _, line in seen], **style)
        axes[1].plot(times, [line.waiting for _, line in seen], linestyle=":", **style)
    over_time(figure, axes, ["cache, %", "texts"])
    axes[0].set_ylim(0, 105)
