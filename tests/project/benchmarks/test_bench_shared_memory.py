"""The shared-memory benchmark: what it serves, what it makes of its times."""

import json

import pytest
from benchmarks.bench_shared_memory import MODEL, _measured, lines, plot, write_repository

TIMES = {
    1024: {"http": 1.0, "http shared": 1.5, "grpc": 2.0, "grpc shared": 2.0},
    4 << 20: {"http": 12.0, "http shared": 3.0, "grpc": 20.0, "grpc shared": 2.5},
}


def test_the_model_returns_its_input(tmp_path):
    """It computes nothing, on the device that computes nothing."""
    write_repository(tmp_path)
    model = json.loads((tmp_path / MODEL / "1" / "model.null").read_text())
    assert model["outputs"][0]["compute"] == "echo"
    assert 'value { string_value: "null" }' in (tmp_path / MODEL / "config.pbtxt").read_text()


def test_what_comes_back_changed_is_no_figure():
    """A way that loses a value would be fast."""
    with pytest.raises(ValueError, match="what came back is not what was sent"):
        _measured({"http": lambda values: values[::-1]}, 1024, 1)
    assert _measured({"http": lambda values: values}, 1024, 2)["http"] > 0


def test_the_table_says_what_is_saved():
    """A share of the time that messages take; below zero where a region costs more."""
    _, _, small, large = lines(TIMES)
    assert small == "| 1 KiB | 1.00 ms | 1.50 ms | -50% | 2.00 ms | 2.00 ms | 0% |"
    assert large == "| 4 MiB | 12.00 ms | 3.00 ms | 75% | 20.00 ms | 2.50 ms | 88% |"


def test_it_is_drawn(tmp_path):
    """A picture, in a folder that is made where it is missing."""
    pytest.importorskip("matplotlib")
    assert plot(TIMES, tmp_path / "new" / "times.png")
    assert (tmp_path / "new" / "times.png").read_bytes().startswith(b"\x89PNG")
