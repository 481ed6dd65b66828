"""What `bench_scale` prints and draws."""

import pytest
from tools.probes.scale_report import MIB, Models, Planner, Waiting, plot, tables

MODELS = [
    Models(count=count, row_us=500.0 + count, stub_bytes=40 * MIB, executor_bytes=60 * MIB)
    for count in (1, 64)
]
WAITING = [
    Waiting(count=count, row_us=50.0, plan_us=5.0, stage_us=20.0, split_us=10.0)
    for count in (1, 1000)
]
PLANNER = [
    Planner(mix="uniform", device="a", engine="any shape", rows=1000, plan_ms=2.0, run_ms=400.0)
]


def test_each_measurement_has_a_line():
    """Models, requests, plans; the last with its share of the runs' time."""
    lines = tables(MODELS, WAITING, PLANNER).splitlines()
    assert lines[2].split() == ["1", "501", "40.0", "60.0"]
    assert lines[3].split() == ["64", "564", "40.0", "60.0"]
    assert ["1000", "50.0", "5.0", "20.0", "10.0"] in [line.split() for line in lines]
    assert lines[-1].split() == ["uniform", "a", "any", "shape", "2.0", "400", "0.50%"]


def test_it_is_drawn(tmp_path):
    """As text, so that a page can show it at any size; equal figures give equal files."""
    pytest.importorskip("matplotlib")
    for name in ("one.svg", "two.svg"):
        assert plot(MODELS, WAITING, tmp_path / name)
    one, two = ((tmp_path / name).read_text() for name in ("one.svg", "two.svg"))
    assert one.startswith("<?xml")
    assert one == two
