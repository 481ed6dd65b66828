"""The benchmark of queue policies: what it serves."""

import numpy as np
from benchmarks.bench_queue_policy import POLICIES, scenario


def test_the_models_differ_in_their_bounds_only(tmp_path):
    """One has none, three have Triton's, one has the backend's own; it is measured against them."""
    made = scenario(tmp_path, 20)
    configs = {name: (made.repository / name / "config.pbtxt").read_text() for name in POLICIES}
    graphs = {(made.repository / name / "1" / "model.null").read_text() for name in POLICIES}
    assert len(graphs) == 1
    assert "dynamic_batching {  }" in configs["no_bound"]
    assert "default_queue_policy { max_queue_size: 64 }" in configs["max_queue_size"]
    assert "default_timeout_microseconds: 10000000 }" in configs["default_timeout"]
    assert "priority_levels: 2" in configs["priority_levels"]
    assert 'key: "max_queue_size" value { string_value: "64" }' in configs["ge_bounds"]
    assert [system.name for system in made.systems if system.ours] == ["ge_bounds"]


def test_every_model_is_sent_the_same_and_answers_with_it(tmp_path):
    """One row of ones, checked in each window."""
    made = scenario(tmp_path, 20)
    pools = made.pools("")
    assert list(pools) == [f"{system.model}/{made.traffic[0]}" for system in made.systems]
    assert all(np.array_equal(pool.answers[0], np.ones(4)) for pool in pools.values())
