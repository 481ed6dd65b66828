"""The sequence benchmark: what it serves, what it sends, what it prints."""

import numpy as np
from benchmarks.bench_sequences import (
    MODELS,
    OURS,
    STEPS,
    Window,
    ceiling,
    lines,
    step_request,
    write_repository,
)
from tritonclient.grpc import service_pb2

RIVAL = "state_dict_1"


def test_all_models_have_the_same_step(tmp_path):
    """One file, two ways to keep the state; only ours has the host's state block."""
    write_repository(tmp_path, 8)
    assert {folder.name for folder in tmp_path.iterdir()} == set(MODELS)
    ours, rival = (tmp_path / name for name in (OURS, RIVAL))
    assert (ours / "1" / "model.onnx").read_bytes() == (rival / "1" / "model.onnx").read_bytes()
    assert (rival / "1" / "model.py").is_file()
    assert "h_next" in (ours / "config.pbtxt").read_text()
    assert "h_next" not in (rival / "config.pbtxt").read_text()
    assert ceiling(ours / "1" / "model.onnx", 8, 0.01) > 0


def test_a_sequence_starts_once_and_ends_once():
    """The first and the last step are marked, for the host."""
    steps = [
        service_pb2.ModelInferRequest.FromString(step_request("m", 7, number))
        for number in range(STEPS)
    ]
    flags = [
        (
            step.parameters["sequence_start"].bool_param,
            step.parameters["sequence_end"].bool_param,
        )
        for step in steps
    ]
    assert flags == [(True, False), *[(False, False)] * (STEPS - 2), (False, True)]
    assert {step.parameters["sequence_id"].int64_param for step in steps} == {7}
    assert np.frombuffer(steps[3].raw_input_contents[0], np.float32).tolist() == [3.0] * 64


def test_the_table_compares_within_rounds():
    """`ours x` is the median of each round's ratio, and the ceiling comes last."""
    windows = [
        Window(system=s, live=4, round_number=n, steps_per_s=rate, latencies_ms=[1.0, 2.0])
        for n, (ours, theirs) in enumerate([(100.0, 50.0), (300.0, 100.0), (90.0, 90.0)])
        for s, rate in ((OURS, ours), (RIVAL, theirs))
    ]
    _, ours, theirs, best = lines(windows, 1000.0)
    assert ours.split() == ["4", OURS, "100", "1.00", "2.00", "1.00"]
    assert theirs.split() == ["4", RIVAL, "90", "1.00", "2.00", "2.00"]
    assert best.split() == ["ceiling", "1000", "0.10"]
