"""From turns to cells, and what tables and verdicts say of them."""

import json

import pytest
from benchmarks.encoder.aims import AIMS
from benchmarks.harness.aims import judged, verdicts
from benchmarks.harness.cells import cells
from benchmarks.harness.generator import Report
from benchmarks.harness.report import aligned, json_lines, machine, plot, table
from benchmarks.harness.turns import Load, System, Turn

CLOSED = Load(traffic="lognormal", in_flight=8)
RANDOM = Load(traffic="lognormal", rate=100.0)
OURS = System(name="ge", model="ge", ours=True)


def rival(name="onnx", layout="1x2"):
    return System(name=name, model=f"{name}_{layout}", layout=layout)


def turn(system, per_s, latency_ms=10.0, load=CLOSED, round_number=0):
    report = Report(
        per_s=per_s,
        wall_s=2.0,
        latencies_ms=[latency_ms] * 10,
        late_ms=0.25,
        refused=0,
        moved_bytes=100.0,
        cpu_s={"host": 1.0, "stub": 1.0, "executor": 2.0, "client": 0.1, "others": 0.5},
        checked=1,
        errors=[],
    )
    return Turn(system=system, load=load, round_number=round_number, report=report)


def test_the_better_layout_counts():
    """By requests in a closed loop, by p99 in an open one."""
    found = cells(
        [
            turn(rival(layout="1x2"), 100, 20),
            turn(rival(layout="2x1"), 120, 30),
            turn(rival(layout="1x2"), 100, 20, RANDOM),
            turn(rival(layout="2x1"), 120, 30, RANDOM),
        ]
    )
    assert [cell.system.layout for cell in found] == ["2x1", "1x2"]


def test_the_best_rival_is_what_all_are_divided_by():
    """It has 1.00; ratios are of the rounds."""
    found = cells(
        [
            *(turn(OURS, rate, 15, round_number=at) for at, rate in enumerate((100, 150, 300))),
            *(turn(rival(), 100, 20, round_number=at) for at in range(3)),
            *(turn(rival("openvino"), 50, 10, round_number=at) for at in range(3)),
        ]
    )
    assert [cell.best_x for cell in found] == [1.5, 1.0, 0.5]
    assert [cell.p99_x for cell in found] == [1.5, 2.0, 1.0]


def test_at_random_there_is_no_ratio_of_rates():
    """All answer what comes."""
    (cell, _) = cells([turn(OURS, 100, load=RANDOM), turn(rival(), 100, 5, load=RANDOM)])
    assert (cell.best_x, cell.p99_x) == (None, 2.0)


def test_without_rivals_there_are_no_ratios():
    """Only figures."""
    (cell,) = cells([turn(OURS, 100)])
    assert (cell.best_x, cell.p99_x) == (None, None)


def test_cpu_is_per_request():
    """4 s for 200 requests in 2 s; the client's own share is beside it."""
    (cell,) = cells([turn(OURS, 100)])
    assert (cell.server_ms, cell.client_ms) == (pytest.approx(20.0), pytest.approx(0.5))
    assert (cell.client_share, cell.others) == (0.05, 0.25)


def test_memory_is_of_the_layout_that_counts():
    """It is measured by model."""
    (cell,) = cells([turn(rival(), 100)], {"onnx 1x2": 300.0, "onnx 2x1": 500.0})
    assert cell.memory_mib == 300.0


def test_a_table_has_no_empty_columns():
    """Columns without a value are left out; the load and the system are always there."""
    text = table(cells([turn(OURS, 100)]))
    heading, line = text.splitlines()
    assert heading.split()[:3] == ["load", "system", "req/s"]
    assert "MiB" not in heading
    assert line.split()[:3] == ["8", "ge", "100"]


def test_tables_are_aligned():
    """Names to the left, numbers to the right."""
    assert aligned([["system", "n"], ["a", "10"], ["longer", "1"]]) == (
        "system   n\na       10\nlonger   1"
    )


def test_json_has_a_line_per_cell():
    """With where it was measured."""
    found = [
        json.loads(line)
        for line in json_lines(cells([turn(OURS, 100)]), {"cpu": "x"}).split("\n")[:-1]
    ]
    assert found[0]["cpu"] == "x"
    assert (found[0]["traffic"], found[0]["in_flight"], found[0]["system"]) == (
        "lognormal",
        8,
        "ge",
    )
    assert found[0]["per_s"] == 100


def test_a_plot_is_drawn_of_closed_loops(tmp_path):
    """One file; nothing without a closed loop."""
    pytest.importorskip("matplotlib")
    assert plot("t", cells([turn(OURS, 100), turn(rival(), 90)]), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 0
    assert not plot("t", cells([turn(OURS, 100, load=RANDOM)]), tmp_path / "b.png")


def test_the_machine_is_named():
    """A figure says nothing without it."""
    pytest.importorskip("pytriton")
    found = machine()
    assert found["cores"] >= 1
    assert found["numpy"]


def test_aims_are_judged_against_the_best_rival():
    """A bound of each load, and p99 beside the lowest of a rival."""
    found = cells(
        [
            turn(OURS, 104, 11),
            turn(rival(), 100, 10),
            turn(OURS, 100, 9, RANDOM),
            turn(rival(), 100, 10, RANDOM),
        ]
    )
    aims = list(judged(found, AIMS["fp32"]))
    assert [(aim.what, aim.met) for aim in aims] == [
        ("lognormal, 8: requests/s >= 1.05x", False),
        ("lognormal, 8: p99 <= 1.1x", True),
        ("lognormal, at random: p99 <= 1.0x", True),
    ]
    text = verdicts(aims)
    assert "1.04 NOT met" in text
    assert "2 of 3 met" in text.splitlines()[-1]


def test_rivals_are_not_judged():
    """Nor loads that have no bound."""
    assert list(judged(cells([turn(rival(), 100)]), AIMS["bf16"])) == []
