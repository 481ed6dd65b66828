"""What executors ran, drawn."""

import pytest
from matplotlib.figure import Figure

from builders.recordings import MS, RUNS, SECOND, past_run, reading, recording
from ge_tools.page.lanes import (
    busiest,
    busy_lanes,
    draw_busy,
    draw_lanes,
    draw_pool,
    pooled,
    waiting,
)
from ge_tools.watch.executors import DeviceRuns
from ge_tools.watch.readings import Reading

BEGIN = 10 * SECOND
CPU = DeviceRuns(device="cpu", pid=1, runs=RUNS, missed=0)


def test_few_runs_are_all_shown():
    """From the first one's start to the last one's end."""
    assert busiest(RUNS) == (BEGIN + 1 * MS, BEGIN + 700 * MS)


def test_of_many_runs_the_densest_moment_is_shown():
    """Of a round length, such that about so many runs are seen."""
    sparse = [past_run(i, came_ms=i, started_ms=100 * i, ended_ms=100 * i + 1) for i in range(50)]
    dense = [past_run(i, came_ms=i, started_ms=2000 + i, ended_ms=2000.5 + i) for i in range(50)]
    begin, end = busiest([*sparse, *dense], at_most=10)
    assert end - begin == 200 * MS
    assert begin <= BEGIN + 2000 * MS < BEGIN + 2049 * MS <= end


def test_busy_lanes_are_averaged_over_each_part_of_a_time():
    """Two lanes for half of a part are one lane."""
    runs = [
        past_run(1, came_ms=0, started_ms=0, ended_ms=5),
        past_run(2, came_ms=0, started_ms=5, ended_ms=15, lane="lane-1"),
        past_run(3, came_ms=0, started_ms=-10, ended_ms=-5),
        past_run(4, came_ms=0, started_ms=10, ended_ms=99),
    ]
    assert busy_lanes(runs, BEGIN, BEGIN + 20 * MS, 2) == pytest.approx([1.0, 1.5])


def test_waiting_runs_are_counted_at_each_change():
    """From their coming to their start, cut to the time that is shown."""
    counts, times = waiting(RUNS, BEGIN, BEGIN + 10 * MS)
    assert [(time - BEGIN) / MS for time in times] == [0, 1, 2, 5, 10]
    assert counts == [1, 0, 1, 0]


def test_a_run_is_solid_as_far_as_its_rows_were_real():
    """Each has a faint bar of its bucket and a solid one of its real rows."""
    figure = Figure()
    draw_lanes(figure, CPU, {"encoder": "#0072B2"})
    axes = figure.axes[0]
    first = [patch for patch in axes.patches if patch.get_x() == 0 and patch.get_width() == 4]
    assert [patch.get_height() for patch in first] == pytest.approx([0.8, 0.6])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["lane-0", "lane-1"]
    assert [text.get_text() for text in axes.texts] == ["preparation"]


def test_busy_lanes_are_drawn_for_each_device():
    """Over the whole recording."""
    figure = Figure()
    other = DeviceRuns(device="npu:0", pid=2, runs=(), missed=0)
    draw_busy(figure, [CPU, other], BEGIN, BEGIN + 2 * SECOND)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["cpu", "npu:0"]
    assert figure.axes[0].get_xlim() == (0, 2)


def test_the_pool_is_drawn_in_a_unit_that_suits_it():
    """What was used, the peak, and the pool itself."""
    figure = Figure()
    draw_pool(figure, recording().readings)
    (axes,) = figure.axes
    assert axes.get_ylabel() == "MiB"
    assert [line.get_ydata()[-1] for line in axes.lines] == [16, 32, 64]


def test_a_server_without_a_pool_has_none_to_draw():
    """The metrics of a pool are there only where one is."""
    assert pooled(recording().readings) == ["cpu"]
    assert pooled((reading(1.0, 1), Reading(at_s=2.0, values={}))) == []
