"""The benchmark of restarts: its table."""

from benchmarks.bench_restart import Pause, lines


def test_medians_stand_side_by_side():
    """Of all kills, without a spare and with one."""
    found = [
        Pause(engine="torch", spare=spare, longest_s=seconds)
        for spare, seconds in (("off", 5.0), ("off", 9.0), ("off", 6.0), ("on", 2.0))
    ]
    assert lines(found)[2:] == ["| torch | 6.0 s | 2.0 s | 4 |"]
