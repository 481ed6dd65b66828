"""One request's timeline, drawn from spans made up."""

import pytest

pytest.importorskip("tritonclient.grpc")
pytest.importorskip("matplotlib")

from benchmarks.fused_timeline import Timeline, draw, lines, median
from matplotlib.figure import Figure

from builders.recordings import MS, SECOND, past_run


def at(milliseconds):
    return int(10 * SECOND + milliseconds * MS)


def timeline(way, *calls, runs=()):
    return Timeline(way=way, calls=[(at(a), at(b)) for a, b in calls], runs=runs)


STEPS = [
    past_run(1, came_ms=1, started_ms=2, ended_ms=3, model="text_classifier_fused/tokenizer"),
    past_run(2, came_ms=4, started_ms=4, ended_ms=6, model="text_encoder"),
]


def test_the_median_is_a_request_that_was():
    """Of an even number the lower one of the two in the middle."""
    found = [timeline("fused", (0, ms)) for ms in (9, 1, 5, 3)]
    assert median(found) is found[3]


def test_the_table_tells_each_steps_time_and_the_rest():
    """From a run's coming to its end; a step of a fused model goes by its own name."""
    (_, line) = lines([timeline("fused", (0, 10), runs=STEPS)])
    assert line.split() == ["fused", "10.00", "2.00", "2.00", "0.00", "6.00"]


def test_calls_and_runs_are_drawn_where_they_were():
    """Milliseconds since the first call was sent; what waits, then what runs."""
    figure = Figure()
    calls = timeline("three calls", (0.5, 4), (4.5, 8), runs=STEPS)
    draw(figure, [calls])
    bars = [(bar.get_x(), bar.get_width()) for bar in figure.axes[0].patches][:6]
    expected = [(0, 3.5), (4, 3.5), (0.5, 1), (1.5, 1), (3.5, 0), (3.5, 2)]
    assert [value for bar in bars for value in bar] == pytest.approx(
        [value for bar in expected for value in bar]
    )
