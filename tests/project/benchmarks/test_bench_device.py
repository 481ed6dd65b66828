"""The benchmark of one device, tiny and on the CPU."""

import json

import pytest

pytest.importorskip("torch")

from tools.probes import bench_device
from tools.probes.bench_device import RIVAL, Window, main, results, table

TINY = "--layers 1 --width 16 --heads 2 --vocabulary 50 --longest 16 --batch 3 --batches 2 --inline"


def test_it_runs_on_the_cpu_and_checks_its_answers(capsys):
    """One line per way for people, and one for programs."""
    main([*TINY.split(), "--rounds", "2"])
    printed = capsys.readouterr().out.splitlines()
    found = [json.loads(line) for line in printed if line.startswith("{")]
    assert [result["way"] for result in found] == [RIVAL, "planned"]
    assert found[0]["ratio"] == 1.0
    assert all(result["requests_per_s"] > 0 for result in found)
    assert sum("right within" in line for line in printed) == 2


def test_a_wrong_answer_ends_it(monkeypatch):
    """Figures of wrong answers are worth nothing."""
    monkeypatch.setitem(bench_device.TOLERANCES, "origin", -1.0)
    with pytest.raises(SystemExit, match="is wrong by up to"):
        main(TINY.split())


def test_ratios_are_taken_within_a_round():
    """A slow round slows both; the median of the rounds' ratios counts."""
    windows = [
        Window(way=way, round_number=number, seconds=(seconds, seconds))
        for number, times in enumerate(((4, 2), (40, 10), (6, 2)))
        for way, seconds in zip((RIVAL, "planned"), times, strict=True)
    ]
    rival, ours = results(windows, batch=8)
    assert (rival.way, rival.ratio, ours.ratio) == (RIVAL, 1.0, 3.0)
    assert (rival.requests_per_s, ours.requests_per_s) == (8 / 6, 4.0)
    assert ours.batch_ms == 2000.0
    assert table([rival, ours]).splitlines()[2].split()[-1] == "3.00"
