"""Results as a table, as JSON lines and as a picture."""

import json

import pytest
from benchmarks.report import json_lines, machine, plot, table
from benchmarks.results import Result


def result(**changes):
    values = {
        "mix": "lognormal",
        "concurrency": 32,
        "system": "ge",
        "layout": "",
        "throughput": 431.7,
        "p50_ms": 71.25,
        "p99_ms": 160.0,
        "server_cpu_s": 4.6,
        "client_cpu_s": 0.05,
        "others_cpu": 0.01,
        "by_round": {0: 431.7, 1: 440.0},
    }
    return Result(**(values | changes))


def test_table_is_aligned_and_says_what_was_measured():
    """Every line of the table has its columns under the header's."""
    text = table(
        "onnx", [result(), result(system="ceiling", layout="1x2x1", p50_ms=None, p99_ms=None)]
    )
    title, header, ours, ceiling = text.splitlines()
    assert title == "onnx"
    assert ours.split() == ["32", "ge", "432", "71.2", "160.0", "4.60", "0.05", "0.01", "1.00"]
    assert ceiling.split() == ["32", "ceiling", "1x2x1", "432", "4.60", "0.05", "0.01", "1.00"]
    assert len(header) == len(ours) == len(ceiling)


def test_each_of_our_systems_is_compared_with_every_line_of_its_load():
    """By the median of the ratios within a round."""
    lines = table(
        "onnx",
        [
            result(by_round={0: 120.0}),
            result(system="ge_packed", by_round={0: 150.0}),
            result(system="packed", by_round={0: 100.0}),
            result(concurrency=1, system="packed", by_round={0: 80.0}),
            result(concurrency=1, system="ge_packed", by_round={0: 120.0}),
            result(concurrency=1, by_round={0: 120.0}),
        ],
    ).splitlines()[1:]
    assert lines[0].endswith("ge x  ge_packed x")
    assert [line.split()[-2:] for line in lines[1:5]] == [
        ["1.00", "1.25"],
        ["0.80", "1.00"],
        ["1.20", "1.50"],
        ["1.50", "1.50"],
    ]


def test_json_lines_carry_the_context():
    """Each result is one JSON object, with the machine and commit in it."""
    lines = json_lines([result(), result(p50_ms=None)], {"commit": "abc", "engine": "onnx"})
    first, second = map(json.loads, lines.splitlines())
    assert (first["commit"], first["system"], first["throughput"]) == ("abc", "ge", 431.7)
    assert second["p50_ms"] is None


def test_plot_writes_a_picture(tmp_path):
    """A PNG is written where matplotlib is installed."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "serving.png"
    drawn = [result(concurrency=c, mix=m) for m in ("lognormal", "uniform") for c in (1, 32)]
    assert plot("onnx", drawn, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_machine_names_what_a_result_depends_on():
    """The context has the commit, the processor and the versions."""
    pytest.importorskip("pytriton")
    context = machine()
    assert {"commit", "cpu", "cores", "triton", "onnxruntime", "torch"} <= set(context)
    assert context["cores"] >= 1
