"""What a recording says in numbers."""

import pytest

from builders.recordings import RUNS, past_run, reading, recording
from ge_tools.page.numbers import (
    host_latencies,
    quantile,
    request_rates,
    run_latencies,
    served_models,
)
from ge_tools.watch.readings import Reading


def test_a_model_is_told_by_what_changed():
    """Sums over the recording, ratios of sums, times per request."""
    (model,) = served_models(recording())
    assert (model.requests, model.failures, model.rows, model.runs) == (100, 2, 200, 40)
    assert (model.requests_per_s, model.rows_per_batch) == (50, 5)
    assert (model.padding, model.longest) == (1.25, 3)
    assert model.plan_error == pytest.approx(0.08)
    assert model.sizes == {"sequence": [(8, 150), (16, 50)]}
    assert model.buckets == [("4x8", 30), ("4x64", 10)]
    assert model.parts_ms["wait"] == pytest.approx(10)
    assert model.parts_ms["run"] == pytest.approx(8)


def test_what_was_before_the_recording_does_not_count():
    """Counters are of the server's whole life."""
    late = recording(readings=(reading(10.0, 0.5), reading(11.0, 1)))
    (model,) = served_models(late)
    assert (model.requests, model.requests_per_s) == (50, 50)


def test_a_model_that_took_nothing_is_left_out():
    """Its numbers would all be dashes."""
    assert served_models(recording(readings=(reading(10.0, 1), reading(11.0, 1)))) == []


def test_the_host_tells_the_mean_and_what_of_it_was_its_queue():
    """Of requests that it answered; percentiles only where it keeps them."""
    (host,) = host_latencies(recording())
    assert (host.requests, host.mean_ms, host.queue_ms) == (98, 12, 3)
    assert host.quantiles_ms == {}


def test_percentiles_are_taken_where_the_host_keeps_them():
    """A quantile of nothing is not a number, and left out."""
    after = reading(12.0, 1)
    name = "nv_inference_request_summary_us"
    kept = {"0.5": 9_000.0, "0.99": 40_000.0, "0.9": float("nan"), "0.999": 1.0}
    told = {(name, (("model", "encoder"), ("quantile", q))): us for q, us in kept.items()}
    whole = Reading(at_s=12.0, values={**after.values, **told})
    (host,) = host_latencies(recording(readings=(reading(10.0, 0), whole)))
    assert host.quantiles_ms == {0.5: 9, 0.99: 40}


def test_percentiles_of_two_versions_are_the_slower_one_s():
    """The host tells them apart, and percentiles cannot be added up."""
    name = "nv_inference_request_summary_us"
    told = {
        (name, (("model", "encoder"), ("quantile", "0.5"), ("version", version))): us
        for version, us in (("1", 2_600.0), ("2", 2_700.0))
    }
    whole = Reading(at_s=12.0, values={**reading(12.0, 1).values, **told})
    (host,) = host_latencies(recording(readings=(reading(10.0, 0), whole)))
    assert host.quantiles_ms == {0.5: 2.7}


def test_runs_have_percentiles_by_model_without_preparations():
    """Waiting, running, and both; what failed counts too."""
    (runs,) = run_latencies(RUNS)
    assert (runs.model, runs.runs, runs.failed) == ("encoder", 3, 1)
    assert runs.filled == pytest.approx(10 / 12)
    assert runs.queue_ms == {0.5: 1, 0.9: 3, 0.99: 3}
    assert runs.run_ms == {0.5: 4, 0.9: 4, 0.99: 4}
    assert runs.whole_ms == {0.5: 5, 0.9: 7, 0.99: 7}


def test_preparations_alone_are_no_runs():
    """A server that has just started has nothing else."""
    assert run_latencies([past_run(1, came_ms=0, started_ms=1, ended_ms=2, bucket=())]) == []


def test_rates_are_told_between_readings():
    """Each from one to the next."""
    rates = request_rates(recording().readings, "encoder")
    assert rates == [(0, 1, 25), (1, 2, 75)]


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 2), (0.51, 3), (0.75, 3), (0.99, 4), (1.0, 4)]
)
def test_a_quantile_is_a_value_that_was_seen(share, expected):
    """The smallest one that so many do not exceed; nothing is interpolated."""
    assert quantile([4, 1, 3, 2], share) == expected
