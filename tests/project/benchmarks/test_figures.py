"""Percentiles, rates and ratios."""

import pytest
from benchmarks.harness.figures import median_ratio, percentile, rate
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (50, 2.0), (75, 3.0), (76, 4.0), (99, 4.0), (100, 4.0)]
)
def test_percentile_is_one_of_the_values(percent, expected):
    """A percentile is the smallest value that so many percent of the values do not exceed."""
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_percentile_keeps_its_promise(values, percent):
    """At least so many percent of the values do not exceed the percentile, and fewer do below."""
    found = percentile(values, percent)
    assert sum(value <= found for value in values) * 100 >= percent * len(values) * (1 - 1e-12)
    assert sum(value < found for value in values) * 100 <= percent * len(values) * (1 + 1e-12)


def test_percentile_of_nothing_is_refused():
    """A window without answers is an error, not a zero."""
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_rate_of_steady_answers():
    """Answers every 10 ms are 100 a second, wherever the window begins and ends."""
    ends = [index / 100 for index in range(301)]
    for start, end in ((0.5, 2.5), (0.503, 2.499), (0.0, 3.0)):
        assert rate(ends, start, end) == pytest.approx(100)


def test_rate_of_bursts_is_not_biased_by_where_the_window_ends():
    """Bursts of 32 every 0.3 s are 107 a second, although a window sees 6 or 7 of them."""
    ends = sorted(0.3 * burst for burst in range(20) for _ in range(32))
    for start in (0.31, 0.35, 0.45, 0.59):
        assert rate(ends, start, start + 2.0) == pytest.approx(32 / 0.3)


@pytest.mark.parametrize("ends", [[], [0.1], [0.1, 5.0]])
def test_rate_needs_two_answers(ends):
    """Fewer than two answers by the end of the window give no rate."""
    with pytest.raises(ValueError, match="too few"):
        rate(ends, 0.2, 2.0)


def test_median_ratio_pairs_rounds():
    """Ratios are taken within a round, so a round that was slow for both does not count twice."""
    ours = {0: 300.0, 1: 30.0, 2: 310.0}
    theirs = {0: 100.0, 1: 10.0, 2: 100.0}
    assert median_ratio(ours, theirs) == pytest.approx(3.0)


def test_median_ratio_without_a_common_round_is_refused():
    """Two systems that never ran in the same round are not compared."""
    with pytest.raises(ValueError, match="no round"):
        median_ratio({0: 1.0}, {1: 1.0})
