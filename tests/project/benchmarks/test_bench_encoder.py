"""Our encoder against transformers' padded batch, on the CPU."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import random_encoder
from tools.probes import bench_encoder
from tools.probes.bench_encoder import Batch, lines, main


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(random_encoder.SIZES, "bert-small", (2, 32, 2))
    monkeypatch.setattr(bench_encoder, "ROWS", (1, 5))


@pytest.mark.parametrize("precision", ["origin", "bf16"])
def test_both_ways_answer_alike(precision, capsys):
    """A line per size, and how long it took to load."""
    arguments = ["--encoder", "bert-small", "--precision", precision, "--rounds", "1"]
    assert main(arguments) == 0
    head, ready, *table = capsys.readouterr().out.splitlines()
    assert head == f"bert-small, {precision}, cpu"
    assert ready.startswith("loaded and made ready in ")
    assert [line.split()[1] for line in table[2:]] == ["1", "5"]


def test_answers_that_differ_fail(monkeypatch, capsys):
    """A fast wrong answer is worth nothing."""
    ours = bench_encoder._ours
    monkeypatch.setattr(
        bench_encoder, "_ours", lambda graph: lambda *given: 1 + ours(graph)(*given)
    )
    assert main(["--encoder", "bert-small", "--precision", "origin", "--rounds", "1"]) == 1
    assert "answers differ by up to 1.0e+00" in capsys.readouterr().out


def test_without_the_device_it_says_so(capsys):
    """And is done."""
    assert main(["--device", "cuda:7"]) == 0
    assert capsys.readouterr().out.startswith("SKIP  bench_encoder: device 'cuda:7'")


def test_the_table():
    """Ratios above 1 are ours."""
    batch = Batch(rows=2, tokens=9, padded_tokens=12, ours_ms=2.0, padded_ms=3.0, apart=0.0)
    assert lines([batch])[-1] == "| 2 | 9 | 12 | 2.00 ms | 3.00 ms | 1.50 |"
