"""What a quick run says has moved."""

import json

from benchmarks.expected import expected_of, keep, moved, ratios
from benchmarks.results import CEILING, Sample, results


def sample(system, throughput):
    return Sample(
        system=system,
        layout="",
        mix="lognormal",
        concurrency=8,
        round_number=0,
        throughput=throughput,
        requests=10,
        wall_s=1.0,
        latencies_ms=(1.0,),
        cpu_s={},
    )


def test_ratios_are_by_cell_and_leave_ourselves_out():
    """Of each of ours over each other's, rounded to what a run can say."""
    ours = [sample("ge", 100.0), sample("ge_packed", 200.0)]
    found = results([*ours, sample("pad_longest", 40.0), sample(CEILING, 130.0)])
    assert ratios(found) == {
        "lognormal, 8 in flight, ge over pad_longest": 2.5,
        "lognormal, 8 in flight, ge over ceiling": 0.77,
        "lognormal, 8 in flight, ge_packed over pad_longest": 5.0,
        "lognormal, 8 in flight, ge_packed over ceiling": 1.54,
    }


def test_only_what_moved_is_named_the_worst_first():
    """Within the noise of a run nothing is said, nor of a cell that nothing is known of."""
    expected = {"a": 2.0, "b": 1.0, "c": 1.0, "d": 1.0, "z": 1.0, "y": 1.5}
    assert moved({"a": 1.7, "b": 0.5, "c": 1.5, "d": 0.7, "e": 9.0}, expected) == [
        "worse: b: 0.50x, expected 1.00x",
        "worse: d: 0.70x, expected 1.00x",
        "better: c: 1.50x, expected 1.00x",
        "gone: y: expected 1.50x",
        "gone: z: expected 1.00x",
    ]


def test_what_is_kept_of_one_engine_leaves_the_others(tmp_path):
    """In a file that a person can read; what another processor showed is not expected here."""
    file = tmp_path / "expected.json"
    keep("onnx", "Xeon", {"a": 1.0}, file)
    keep("torch", "Xeon", {"b": 2.0}, file)
    keep("onnx", "Xeon", {"c": 3.0}, file)
    keep("onnx", "EPYC", {"c": 4.0}, file)
    assert json.loads(file.read_text()) == {
        "onnx, Xeon": {"c": 3.0},
        "torch, Xeon": {"b": 2.0},
        "onnx, EPYC": {"c": 4.0},
    }
    assert expected_of("onnx", "EPYC", file) == {"c": 4.0}
    assert expected_of("torch", "EPYC", file) == {}
