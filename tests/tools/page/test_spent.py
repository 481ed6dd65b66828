"""Times, drawn."""

import pytest
from matplotlib.figure import Figure

from builders.recordings import RUNS, recording
from ge_tools.page.numbers import HostLatency, run_latencies, served_models
from ge_tools.page.spent import draw_latencies, draw_parts


def test_parts_of_the_instance_and_of_the_executor_have_a_bar_each():
    """They are not added up: the one waits for the other."""
    figure = Figure()
    draw_parts(figure, served_models(recording()))
    (axes,) = figure.axes
    widths = [patch.get_width() for patch in axes.patches]
    assert widths == pytest.approx([1, 2, 3, 10, 4, 5, 8])
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["encoder: instance", "encoder: executor"]


def test_requests_and_runs_have_a_line_each():
    """Both are latencies, of different things: each has its name in the legend."""
    host = HostLatency(
        model="encoder", requests=9, mean_ms=1, queue_ms=0, quantiles_ms={0.5: 1, 0.99: 5}
    )
    figure = Figure()
    draw_latencies(figure, [host], run_latencies(RUNS))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["encoder", "encoder"]
    drawn = [tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata())]
    assert drawn == [(1,), (5,), (5,), (7,), (7,)]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[-2:] == ["requests, in the server", "runs, in the executor"]


def test_runs_alone_are_drawn_without_a_word_of_requests():
    """Where the host keeps no percentiles."""
    figure = Figure()
    draw_latencies(figure, [], run_latencies(RUNS))
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "requests, in the server" not in legend
