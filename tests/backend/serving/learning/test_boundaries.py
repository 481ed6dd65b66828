import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.histograms import histogram_of
from ge_backend.errors import ConfigError
from ge_backend.serving.learning.boundaries import best_boundaries, expect
from ge_backend.shapes.traffic.histogram import SizeHistogram

TRAFFIC = st.dictionaries(st.integers(1, 14), st.integers(1, 50), min_size=1, max_size=8)
GROWING = st.lists(st.floats(0, 10), min_size=31, max_size=31).map(
    lambda steps: list(itertools.accumulate(steps))
)


def total(counts, boundaries, prices):
    """Return what traffic costs if each value takes the cheapest boundary that covers it."""
    return sum(
        count * min(prices[b] for b in boundaries if b >= value) for value, count in counts.items()
    )


@given(counts=TRAFFIC, prices=GROWING, count=st.integers(1, 4), maximum=st.none() | st.just(16))
def test_boundaries_are_optimal(counts, prices, count, maximum):
    """No other boundaries, among all sizes, make the traffic cheaper."""
    found = best_boundaries(histogram_of(counts), count, prices.__getitem__, maximum=maximum)
    last = maximum or max(counts)
    best = min(
        total(counts, (*chosen, last), prices)
        for used in range(min(count, last))
        for chosen in itertools.combinations(range(1, last), used)
    )
    assert len(found) <= count
    assert found[-1] == last
    assert math.isclose(total(counts, found, prices), best, rel_tol=1e-9, abs_tol=1e-9)


@given(counts=TRAFFIC, prices=st.lists(st.floats(0, 9), min_size=15, max_size=15))
def test_any_costs_do_among_the_sizes_seen(counts, prices):
    """Where a larger size is cheaper, boundaries are still the best of those seen."""
    found = best_boundaries(histogram_of(counts), 3, prices.__getitem__)
    seen = sorted(counts)
    best = min(
        total(counts, (*chosen, seen[-1]), prices)
        for used in range(3)
        for chosen in itertools.combinations(seen[:-1], used)
    )
    assert math.isclose(total(counts, found, prices), best, rel_tol=1e-9, abs_tol=1e-9)


@given(counts=TRAFFIC, maximum=st.none() | st.integers(14, 40))
def test_boundaries_cover_all(counts, maximum):
    """The last boundary is the maximum, where there is one; everything seen is covered."""
    histogram = histogram_of(counts)
    found = best_boundaries(histogram, 4, maximum=maximum)
    assert found == tuple(sorted(set(found)))
    assert found[-1] == (maximum or found[-1])
    assert expect(histogram, found).uncovered == 0.0


def test_no_more_boundaries_than_help():
    """Two distinct sizes need no more than two boundaries."""
    assert best_boundaries(histogram_of({8: 5, 64: 1}), 9) == (8, 64)
    assert best_boundaries(histogram_of({8: 5, 64: 1}), 1) == (64,)


def test_expectation_counts_padding():
    """Means are per value: cost, real size, padded size; what no boundary covers is apart."""
    found = expect(histogram_of({10: 3, 20: 1, 50: 4}), [40, 10], cost=lambda size: size + 1.0)
    assert found.cost == (3 * 11 + 41) / 4
    assert found.real == 12.5
    assert found.padded == 17.5
    assert found.padding == pytest.approx(1 - 12.5 / 17.5)
    assert found.uncovered == 0.5


def test_expectation_of_nothing():
    """Without traffic there is neither cost nor padding."""
    found = expect(SizeHistogram(), [16])
    assert (found.cost, found.padding, found.uncovered) == (0.0, 0.0, 0.0)


def test_learned_boundaries_beat_doubling():
    """On sizes with a long tail, as many learned boundaries pad less than powers of two."""
    counts = {size: max(1, int(4000 * math.exp(-size / 90))) for size in range(1, 513)}
    histogram = histogram_of(counts)
    doubling = (16, 32, 64, 128, 256, 512)
    learned = best_boundaries(histogram, len(doubling), maximum=512)
    assert expect(histogram, learned).cost < 0.95 * expect(histogram, doubling).cost


@pytest.mark.parametrize(
    ("histogram", "count", "said"),
    [(SizeHistogram(), 2, "no traffic was recorded"), (histogram_of({3: 1}), 0, "0 boundaries")],
)
def test_what_cannot_be_learned(histogram, count, said):
    """Nothing to learn from, or nothing to learn, is an error."""
    with pytest.raises(ConfigError, match=said):
        best_boundaries(histogram, count)
