"""The benchmark of restarts: its table."""

from benchmarks.bench_restart import Pause, lines


def test_medians_stand_side_by_side():
    """Of all kills, without a spare and with one, beside the most memory that a spare had."""
    found = [
        Pause(engine="torch", spare=spare, longest_s=seconds, spare_bytes=mib << 20)
        for spare, seconds, mib in (
            *(("off", seconds, 0) for seconds in (5.0, 9.0, 6.0)),
            ("on", 2.0, 80),
        )
    ]
    assert lines(found)[2:] == ["| torch | 6.0 s | 2.0 s | 4 | 80 MiB |"]
