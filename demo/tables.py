"""The two tables that the demo prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.markup import escape
from rich.table import Table

from demo.counters import Counters
from demo.repository import ServedModel
from demo.sentences import Sentence
from demo.traffic import Reply
from ge_backend.tensors import Array

__all__ = ["Outcome", "neighbours_table", "traffic_table"]

# Characters of a line that are not text: the numbers, the frame.
_NOT_TEXT = 24
_SHOWN_BUCKETS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one model did with the page.

    Attributes:
        difference: the largest absolute difference from the unpadded truth.
    """

    model: ServedModel
    replies: Sequence[Reply]
    counters: Counters
    wall_s: float
    difference: float

    @property
    def right(self) -> bool:
        """Whether every embedding is within the model's tolerance; NaN is not."""
        return self.difference <= self.model.tolerance

    def latency_ms(self, percent: float) -> float:
        """Return a percentile of what clients waited."""
        return float(np.percentile([reply.latency_s for reply in self.replies], percent)) * 1e3


def neighbours_table(
    page: Sequence[Sentence], best: Array, similarity: Array, *, width: int
) -> Table:
    """Return one line for each topic's shortest and longest text, with its nearest neighbour.

    Texts are cut so that the table is at most `width` characters wide.
    """
    shown = max(16, (width - _NOT_TEXT) // 2)
    same = sum(page[row].topic == page[best[row]].topic for row in range(len(page)))
    table = Table(
        title="Nearest neighbours by cosine similarity",
        caption=f"{same} of {len(page)} texts have their nearest neighbour on their own topic",
    )
    table.add_column("words", justify="right")
    table.add_column("text")
    table.add_column("nearest")
    table.add_column("cosine", justify="right")
    for row in _shortest_and_longest(page):
        table.add_row(
            str(page[row].words),
            _shortened(page[row].text, shown),
            _shortened(page[best[row]].text, shown),
            f"{similarity[row]:.2f}",
        )
    return table


def traffic_table(outcomes: Sequence[Outcome]) -> Table:
    """Return one column per model: what it was asked, what ran, and how long clients waited."""
    table = Table(title="Traffic")
    table.add_column("")
    for outcome in outcomes:
        table.add_column(outcome.model.title, justify="right")
    lines = (
        ("requests", [str(o.counters.requests) for o in outcomes]),
        ("batches from the host", [str(o.counters.batches) for o in outcomes]),
        ("sub-batches run", [str(sum(o.counters.buckets.values())) for o in outcomes]),
        ("buckets used most", [_buckets(o.counters) for o in outcomes]),
        (
            "padding saved against pad-to-longest",
            [f"{o.counters.padding_saved:.0%}" for o in outcomes],
        ),
        ("texts per second", [f"{len(o.replies) / o.wall_s:.0f}" for o in outcomes]),
        ("latency p50", [f"{o.latency_ms(50):.1f} ms" for o in outcomes]),
        ("latency p99", [f"{o.latency_ms(99):.1f} ms" for o in outcomes]),
        ("largest difference from unpadded float32", [f"{o.difference:.1e}" for o in outcomes]),
        ("allowed", [f"{o.model.tolerance:.0e}" for o in outcomes]),
    )
    for title, cells in lines:
        table.add_row(title, *cells)
    return table


def _buckets(counters: Counters) -> str:
    """Return the buckets that ran most, a line each."""
    ranked = sorted(counters.buckets.items(), key=lambda item: -item[1])
    lines = [f"{name} x {count}" for name, count in ranked[:_SHOWN_BUCKETS]]
    rest = sum(count for _, count in ranked[_SHOWN_BUCKETS:])
    return "\n".join([*lines, f"others x {rest}"] if rest else lines)


def _shortest_and_longest(page: Sequence[Sentence]) -> list[int]:
    """Return two rows per topic, in the page's order."""
    chosen: list[int] = []
    for topic in dict.fromkeys(sentence.topic for sentence in page):
        rows = [row for row in range(len(page)) if page[row].topic == topic]
        rows.sort(key=lambda row: page[row].words)
        chosen += [rows[0], rows[-1]]
    return chosen


def _shortened(text: str, length: int) -> str:
    """Return at most `length` characters of a text, safe to print with markup."""
    return escape(text if len(text) <= length else text[: length - 1] + "…")
