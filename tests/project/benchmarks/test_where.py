"""Where the time goes: the arithmetic."""

import pytest
from benchmarks.harness.generator import Report
from tools.probes.where import budget, shape, sums

TEXT = """\
# HELP ge_requests_total Requests.
# TYPE ge_requests_total counter
ge_requests_total{model="ge",version="1"} 30
ge_requests_total{model="ge",version="2"} 12
ge_requests_total{model="other",version="1"} 99
"""

METRICS = {
    "ge_requests_total": 100.0,
    "ge_batches_total": 5.0,
    "ge_sub_batches_total": 20.0,
    "ge_elements_real_total": 1000.0,
    "ge_elements_run_total": 1100.0,
    "ge_elements_longest_total": 4000.0,
    "ge_early_replies_total": 25.0,
    "ge_plan_seconds_total": 0.001,
    "ge_queue_seconds_total": 0.4,
    "ge_run_seconds_total": 0.2,
}


def test_metrics_are_summed_over_instances_of_one_model():
    """Series of one model are added up, other models are left out."""
    assert sums(TEXT, "ge") == {"ge_requests_total": 42.0}


def test_budget_accounts_for_every_core():
    """CPU time by process and idle time add up to all cores' time."""
    report = Report(
        per_s=50.0,
        wall_s=2.0,
        latencies_ms=[],
        late_ms=0.0,
        refused=0,
        moved_bytes=100.0,
        cpu_s={"host": 0.5, "executor": 2.5, "client": 0.1, "others": 0.2},
        checked=1,
        errors=[],
    )
    lines = {name.strip(): spent for name, spent, _ in budget(report, METRICS, 2)}
    parts = ("tritonserver CPU", "executor CPU", "load generator CPU", "other programs CPU", "idle")
    assert lines["all cores"] == pytest.approx(40_000)
    assert sum(lines[part] for part in parts) == pytest.approx(40_000)
    assert lines["idle"] == pytest.approx(7_000)
    assert lines["stub: plan"] == pytest.approx(10)
    assert lines["executor: run"] == pytest.approx(2_000)


def test_shape_tells_batches_and_padding():
    """Requests per batch and run, and padding against real elements."""
    assert shape(METRICS) == (
        "20.0 requests a batch, 5.0 a run; padding 10% (to the longest: 300%); early replies 25%"
    )
