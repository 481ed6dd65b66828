"""Rates, ratios and devices from two readings."""

import pytest

from ge_backend.cli.watch.readings import Reading, device_lines, grown, model_lines


def reading(at_s, **values):
    """Return a reading; keys are `name` or `name__label_value__…`."""
    series = {}
    for key, value in values.items():
        name, *labels = key.split("__")
        pairs = [label.split("_", 1) for label in labels]
        pairs = {"model": "m", **dict(pairs)}
        series[name, tuple(sorted(pairs.items()))] = value
    return Reading(at_s=at_s, values=series)


BEFORE = reading(
    10.0,
    ge_requests_total=100,
    ge_rows_total=200,
    ge_batches_total=50,
    ge_elements_real_total=1000,
    ge_elements_run_total=1200,
    ge_sub_batches_total__bucket_4x8=10,
    ge_queue_seconds_total__device_cpu=1.0,
    ge_run_seconds_total__device_cpu=5.0,
    ge_planned_seconds_total__device_cpu=4.0,
    ge_plan_error_seconds_total__device_cpu=1.0,
)
AFTER = reading(
    12.0,
    ge_requests_total=160,
    ge_request_failures_total__status_INTERNAL=2,
    ge_rows_total=320,
    ge_batches_total=70,
    ge_elements_real_total=2000,
    ge_elements_run_total=2700,
    ge_sub_batches_total__bucket_4x8=14,
    ge_sub_batches_total__bucket_8x8=16,
    ge_sub_batches_total__bucket_1x8=0,
    ge_queue_seconds_total__device_cpu=1.04,
    ge_run_seconds_total__device_cpu=7.0,
    ge_planned_seconds_total__device_cpu=6.0,
    ge_plan_error_seconds_total__device_cpu=1.1,
    ge_device_up__device_cpu=1,
    ge_device_outstanding_seconds__device_cpu=0.25,
    ge_workspace_pool_bytes__device_cpu=1024,
    ge_workspace_used_bytes__device_cpu=128,
    ge_workspace_peak_bytes__device_cpu=512,
)


def test_a_model_is_told_by_what_changed():
    """Rates over the time between, ratios of what was counted, buckets most used first."""
    (line,) = model_lines(BEFORE, AFTER)
    assert (line.model, line.requests_per_s, line.failures_per_s) == ("m", 30, 1)
    assert (line.rows_per_batch, line.padding) == (6, 1.5)
    assert line.queue_ms == pytest.approx(2.0)
    assert line.run_ms == pytest.approx(100.0)
    assert line.plan_error == pytest.approx(0.05)
    assert line.buckets == ("8x8", "4x8")


def test_a_model_that_did_nothing_has_no_ratios():
    """A dash, not a division by zero."""
    (line,) = model_lines(AFTER, AFTER)
    assert (line.requests_per_s, line.rows_per_batch, line.padding, line.run_ms) == (
        0,
        None,
        None,
        None,
    )
    assert line.buckets == ()
    assert line.plan_error is None


def test_a_counter_that_fell_began_anew():
    """The server was restarted between two looks."""
    (line,) = model_lines(AFTER, reading(14.0, ge_requests_total=10))
    assert line.requests_per_s == 5


def test_a_device_is_told_as_it_is():
    """All its models see one pool and one queue: nothing is added up."""
    (line,) = device_lines(BEFORE, AFTER)
    assert (line.device, line.up, line.outstanding_ms, line.busy) == ("cpu", True, 250, 1.0)
    assert (line.pool_bytes, line.used_bytes, line.peak_bytes) == (1024, 128, 512)


def test_a_device_that_any_model_lost_is_lost():
    """One model's view is enough to look."""
    values = {
        ("ge_device_up", (("device", "npu:0"), ("model", name))): up
        for name, up in (("a", 1.0), ("b", 0.0))
    }
    (line,) = device_lines(BEFORE, Reading(at_s=11, values=values))
    assert not line.up


def test_models_of_other_backends_are_not_ours():
    """The host counts requests of every model."""
    values = {
        ("nv_inference_count_total", (("model", "theirs"),)): 1.0,
        ("ge_buckets", (("model", "m"),)): 3.0,
    }
    assert Reading(at_s=1, values=values).models == ["m"]


def test_what_grew_is_told_by_label():
    """What did not grow is left out."""
    assert grown(BEFORE, AFTER, "ge_sub_batches_total", "bucket", model="m") == {
        "4x8": 4,
        "8x8": 16,
    }
