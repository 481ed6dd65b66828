"""The table of a tree beside an earlier commit of itself."""

from benchmarks.bench_before import AFTER, BEFORE, Window, lines


def window(side, number, per_s, p99_ms=10.0, cpu_ms=2.0, concurrency=8):
    return Window(
        side=side,
        concurrency=concurrency,
        round_number=number,
        per_s=per_s,
        p99_ms=p99_ms,
        cpu_ms=cpu_ms,
    )


def test_ratios_are_taken_within_a_round():
    """A round in which the machine was slow for both says as much as a fast one."""
    windows = [
        *(window(BEFORE, 0, 100.0), window(AFTER, 0, 120.0, p99_ms=9.0, cpu_ms=1.8)),
        *(window(BEFORE, 1, 50.0), window(AFTER, 1, 60.0, p99_ms=9.0, cpu_ms=1.8)),
        *(window(BEFORE, 2, 10.0), window(AFTER, 2, 12.0, p99_ms=9.0, cpu_ms=1.8)),
        *(window(BEFORE, 0, 7.0, concurrency=1), window(AFTER, 0, 7.0, concurrency=1)),
    ]
    _, eight, one = lines(windows)
    assert eight.split() == ["8", "50.0", "60.0", "1.20", "0.90", "0.90"]
    assert one.split() == ["1", "7.0", "7.0", "1.00", "1.00", "1.00"]
