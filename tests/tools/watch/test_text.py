"""What `ge-backend top` and `report` say of models that generate text."""

import pytest

from builders.recordings import reading, text_reading
from ge_tools.watch.text import text_lines

BEFORE, AFTER = text_reading(10.0, 0), text_reading(12.0, 1)


def test_a_model_is_told_by_what_changed():
    """Rates over the time between, means per step, levels as they are."""
    (line,) = text_lines(BEFORE, AFTER)
    assert (line.model, line.tokens_per_s, line.prompt_tokens_per_s) == ("writer", 400, 100)
    assert (line.step_ms, line.tokens_per_step) == (pytest.approx(20), 10)
    assert (line.running, line.waiting, line.cache) == (8, 3, 0.25)
    assert line.preempted == 7
    assert line.finished == {"stop": 20, "length": 10}
    assert line.buckets == (("8x1x12", 90), ("1x64x4", 10))
    assert (line.adapters, line.adapter_bytes, line.adapter_loads) == (2, 3 << 20, 6)
    assert (line.adapter_evictions, line.adapted_steps) == (4, 60)


def test_quantiles_are_as_fine_as_the_histogram():
    """Linear within a bucket; what is above the last bound counts as that bound."""
    (line,) = text_lines(BEFORE, AFTER)
    assert line.next_ms[0.5] == pytest.approx(10 + 10 * 300 / 600)
    assert line.next_ms[0.99] == pytest.approx(50)
    assert line.first_ms == {0.5: pytest.approx(100), 0.99: pytest.approx(199, abs=1)}


def test_what_was_before_does_not_count():
    """Only what came between the readings, however long the server runs."""
    (line,) = text_lines(AFTER, text_reading(13.0, 1))
    assert (line.tokens_per_s, line.preempted, line.finished) == (0, 0, {})
    assert (line.first_ms, line.next_ms, line.step_ms, line.buckets) == ({}, {}, None, ())
    assert line.running == 8


def test_other_models_have_no_line():
    """A model that runs graphs draws no tokens."""
    assert text_lines(reading(10.0, 0), reading(11.0, 1)) == []
