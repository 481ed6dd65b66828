from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
from demo.counters import Counters
from demo.repository import ServedModel
from demo.sentences import PAGE, Sentence
from demo.tables import Outcome, neighbours_table, traffic_table
from demo.traffic import Reply
from rich.console import Console
from rich.table import Table


def printed(table: Table, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def outcome(difference: float = 1e-6, buckets: int = 2) -> Outcome:
    model = ServedModel(
        name="m", title="an engine", file=Path("model.onnx"), precision="origin", tolerance=1e-5
    )
    latencies = [0.001 * number for number in range(1, 101)]
    return Outcome(
        model=model,
        replies=[Reply(index=0, embedding=np.zeros(2), latency_s=s) for s in latencies],
        counters=Counters(
            requests=100,
            batches=40,
            buckets={f"rows={number}": number + 10 for number in range(buckets)},
            real=100,
            run=120,
            longest=180,
        ),
        wall_s=2.0,
        difference=difference,
    )


def test_neighbours_are_shown_for_the_shortest_and_longest_text_of_each_topic():
    """Two lines per topic, in the page's order."""
    page = [
        Sentence(topic="a", text="one two three"),
        Sentence(topic="a", text="one"),
        Sentence(topic="a", text="one two"),
        Sentence(topic="b", text="four five"),
        Sentence(topic="b", text="six"),
    ]
    table = neighbours_table(page, np.array([1, 0, 3, 4, 3]), np.full(5, 0.5), width=80)

    assert list(table.columns[1].cells) == ["one", "one two three", "six", "four five"]
    assert list(table.columns[2].cells) == ["one two three", "one", "four five", "six"]
    assert table.caption == "4 of 5 texts have their nearest neighbour on their own topic"


@pytest.mark.parametrize("width", [80, 140])
def test_neighbours_fit_the_terminal_on_one_line_each(width):
    """Long texts are cut, so the table has one line per row and keeps its numbers."""
    count = len(PAGE)
    table = neighbours_table(PAGE, np.arange(count)[::-1], np.full(count, 0.987), width=width)
    lines = printed(table, width).splitlines()

    assert sum("0.99" in line for line in lines) == 16
    assert len(lines) == 16 + 6
    assert max(map(len, lines)) <= width


def test_markup_in_a_text_is_shown_as_it_is():
    """Square brackets in a sentence are not taken for colours."""
    page = [Sentence(topic="a", text="[red] wine"), Sentence(topic="a", text="white wine too")]
    table = neighbours_table(page, np.array([1, 0]), np.ones(2), width=80)

    assert "[red] wine" in printed(table, 80)


def test_traffic_table_names_every_figure():
    """Requests, batches, padding saved, percentiles, throughput and accuracy are in one column."""
    text = printed(traffic_table([outcome()]), 120)

    for figure in ("100", "40", "21", "75%", "50 ", "50.5 ms", "99.0 ms", "1.0e-06", "1e-05"):
        assert figure in text
    assert "rows=1 x 11" in text


def test_rare_buckets_are_summed_up():
    """Only the buckets that ran most have lines of their own."""
    text = printed(traffic_table([outcome(buckets=8)]), 120)

    assert "rows=2 x 12" in text
    assert "rows=1 x 11" not in text
    assert "others x 21" in text


@pytest.mark.parametrize(
    ("difference", "right"), [(0.0, True), (1e-5, True), (1.1e-5, False), (math.nan, False)]
)
def test_an_outcome_is_right_within_its_tolerance(difference, right):
    """NaN is never right."""
    assert outcome(difference).right is right
