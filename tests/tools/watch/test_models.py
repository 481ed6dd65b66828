"""What models did between two readings."""

import pytest

from builders.recordings import AFTER, BEFORE, look
from ge_tools.watch.models import model_numbers


def test_a_model_is_told_by_what_changed():
    """Rates over the time between, ratios of what was counted, buckets most used first."""
    (model,) = model_numbers(BEFORE, AFTER)
    assert (model.model, model.requests_per_s, model.failures_per_s) == ("m", 30, 1)
    assert (model.rows_per_batch, model.padding) == (6, 1.5)
    assert model.queue_ms == pytest.approx(2.0)
    assert model.run_ms == pytest.approx(100.0)
    assert model.plan_error == pytest.approx(0.05)
    assert model.buckets == [("8x8", 16), ("4x8", 4)]
    assert model.engine == "openvino"


def test_a_model_that_did_nothing_has_no_ratios():
    """A dash, not a division by zero."""
    (model,) = model_numbers(AFTER, AFTER)
    assert (model.requests_per_s, model.rows_per_batch, model.padding, model.run_ms) == (
        0,
        None,
        None,
        None,
    )
    assert model.buckets == []
    assert model.plan_error is None


def test_a_counter_that_fell_began_anew():
    """The server was restarted between two looks."""
    (model,) = model_numbers(AFTER, look(14.0, ge_requests_total=10))
    assert model.requests_per_s == 5
