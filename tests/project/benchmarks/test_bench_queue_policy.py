"""The benchmark of queue policies: what it serves, what it makes of its answers."""

from benchmarks.bench_queue_policy import POLICIES, Window, lines, write_repository


def test_the_models_differ_in_their_bounds_only(tmp_path):
    """One has none, three have Triton's, one has the backend's own."""
    write_repository(tmp_path, 20)
    configs = {name: (tmp_path / name / "config.pbtxt").read_text() for name in POLICIES}
    graphs = {(tmp_path / name / "1" / "model.null").read_text() for name in POLICIES}
    assert len(graphs) == 1
    assert "dynamic_batching {  }" in configs["none"]
    assert "default_queue_policy { max_queue_size: 64 }" in configs["size"]
    assert "default_timeout_microseconds: 10000000 }" in configs["timeout"]
    assert "priority_levels: 2" in configs["priorities"]
    assert 'key: "max_queue_size" value { string_value: "64" }' in configs["own"]


def test_the_table_shows_what_was_late():
    """Rates and percentiles are over all windows of a policy; late is what took too long."""
    windows = [
        Window(policy=policy, clients=2, seconds=2.0, latencies_ms=[40.0, 42.0, 44.0, last])
        for policy in POLICIES
        for last in (46.0, 546.0 if policy == "timeout" else 46.0)
    ]
    _, _, *rows = lines(windows)
    assert rows[0] == "| 2 | no bound at all | 2 | 42 ms | 46 ms | 46 ms | 0.0% |"
    assert rows[2].endswith(
        "`default_timeout_microseconds` | 2 | 42 ms | 546 ms | 546 ms | 12.5% |"
    )
    assert len(rows) == len(POLICIES)
