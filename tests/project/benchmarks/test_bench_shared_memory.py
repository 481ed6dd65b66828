"""The shared-memory benchmark: what it serves, what it makes of its samples."""

import json

import pytest
from benchmarks.bench_shared_memory import MODEL, Sample, lines, plot, summary, write_repository

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


def test_the_fastest_trip_counts():
    """Per size and way the least time; other programs only make a round slower."""
    samples = [
        Sample(nbytes=nbytes, way=way, round_number=number, ms=ms * (1 + number))
        for number in range(3)
        for nbytes, ways in TIMES.items()
        for way, ms in ways.items()
    ]
    assert summary(samples[::-1]) == summary(samples) == TIMES


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
