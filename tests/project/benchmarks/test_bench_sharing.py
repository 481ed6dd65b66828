"""The benchmark of a device that models share: what it serves, what it makes of its answers."""

import json

from benchmarks.bench_sharing import LARGE, SMALL, Window, lines, write_repository


def test_the_small_models_differ_in_priority_only_and_each_row_is_a_run(tmp_path):
    """The large one differs from them in how long its runs take."""
    write_repository(tmp_path, 2, 50)
    configs = {name: (tmp_path / name / "config.pbtxt").read_text() for name in (LARGE, *SMALL)}
    graphs = {
        name: json.loads((tmp_path / name / "1" / "model.null").read_text())["cost_ms"]
        for name in configs
    }
    assert all(
        'key: "buckets.rows" value { string_value: "1" }' in text for text in configs.values()
    )
    assert [name for name, text in configs.items() if "priority" in text] == ["small_first"]
    assert graphs == {LARGE: {"*": 50}, "small": {"*": 2}, "small_first": {"*": 2}}


def test_the_table_shows_what_the_small_model_waits_and_what_that_costs_the_large_one():
    """Percentiles are over all windows of a pair; the share is of what the large one does alone."""
    windows = [
        Window(small=small, clients=clients, small_ms=times, large_per_s=rate)
        for clients in (0, 8)
        for small, times, rate in (
            ("", [], 40.0 * bool(clients)),
            ("small", [3.0, 3.0, 50.0 + clients], 38.0 * bool(clients)),
            ("small_first", [3.0, 3.0, 4.0], 40.0 * bool(clients)),
        )
    ]
    _, _, *rows = lines(windows * 2)
    assert rows == [
        "| 0 | as it is | 3 ms | 50 ms |  |",
        "| 0 | `priority: 1` | 3 ms | 4 ms |  |",
        "| 8 | as it is | 3 ms | 58 ms | 0.95x |",
        "| 8 | `priority: 1` | 3 ms | 4 ms | 1.00x |",
    ]
