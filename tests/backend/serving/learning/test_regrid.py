"""Buckets to have instead of those of now: for sizes without one, and for traffic."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.histograms import histogram_of
from ge_backend.errors import ConfigError
from ge_backend.serving.learning.regrid import (
    MIN_ROWS,
    at_least,
    extended,
    mean_of,
    relearned,
    size_cost,
    up_to,
)
from ge_backend.shapes.buckets.costs import element_costs
from ge_backend.shapes.buckets.grid import covers
from ge_backend.shapes.traffic.histogram import SizeHistogram

GRID = list(itertools.product((1, 2, 4), (8, 16)))
TWO_AXES = list(itertools.product((1, 4), (8, 16), (4, 32)))


def extend(buckets, sizes, limits=None, max_elements=0):
    axes = ("length", "width")[: len(sizes)]
    return extended(buckets, sizes, limits or {}, axes, max_elements)


def traffic_of(rows, **axes):
    histograms = {"rows": SizeHistogram()}
    histograms["rows"].add(rows, 100)
    for name, counts in axes.items():
        histograms[name] = SizeHistogram()
        for size, count in counts.items():
            histograms[name].add(size, count)
    return histograms


@pytest.mark.parametrize(("size", "goal"), [(17, 32), (32, 32), (33, 64), (100, 128)])
def test_a_missed_size_is_covered_for_every_row_count(size, goal):
    """The largest size is doubled until it covers."""
    assert extend(GRID, (size,)) == [(1, goal), (2, goal), (4, goal)]


def test_covered_sizes_need_nothing():
    """Another instance's miss, or an older one, may be covered by now."""
    assert extend(GRID, (16,)) == []


def test_the_graphs_limit_ends_the_doubling():
    """The last bucket is the limit itself; beyond it there is none."""
    assert extend(GRID, (17,), {"length": 20}) == [(1, 20), (2, 20), (4, 20)]
    with pytest.raises(ConfigError, match=r"'length'.* beyond the graph's limit of 20"):
        extend(GRID, (21,), {"length": 20})


def test_a_budget_leaves_row_counts_out():
    """A bucket beyond `max_elements` is never made, and a size without any is an error."""
    assert extend(GRID, (20,), max_elements=64) == [(1, 32), (2, 32)]
    with pytest.raises(ConfigError, match="length=64 would have more than 40 elements"):
        extend(GRID, (60,), max_elements=40)


def test_other_axes_take_a_size_that_there_is():
    """Sizes are rounded up on each axis, so that near ones find the same bucket."""
    assert extend(TWO_AXES, (20, 5)) == [(1, 32, 32), (4, 32, 32)]


@given(st.tuples(st.integers(1, 200), st.integers(1, 200)), st.integers(1, 3))
def test_an_extension_covers_and_is_less_than_twice_too_large(sizes, seed):
    """Whatever was missed has a bucket afterwards, with every row count."""
    grid = list(itertools.product((1, 4), (8 * seed, 16 * seed), (4, 32)))
    fresh = extend(grid, sizes)
    assert any(covers(bucket[1:], sizes) for bucket in [*grid, *fresh])
    assert {bucket[0] for bucket in fresh} in ({1, 4}, set())
    for bucket in fresh:
        assert all(
            have < 2 * need or have <= 32 * seed
            for have, need in zip(bucket[1:], sizes, strict=True)
        )


COSTS = element_costs(list(itertools.product((1, 4), (16, 32, 64))))


def test_boundaries_move_to_where_traffic_is():
    """As many as before, the largest stays, and row counts stay."""
    traffic = traffic_of(4, length={18: 900, 40: 900, 60: 5})
    assert relearned(COSTS, traffic, ("length",)) == [
        (rows, size) for rows in (1, 4) for size in (18, 40, 64)
    ]


def test_traffic_that_fits_changes_nothing():
    """Sizes are at the boundaries already."""
    traffic = traffic_of(4, length={16: 500, 32: 500, 64: 500})
    assert relearned(COSTS, traffic, ("length",)) == []


def test_a_small_saving_changes_nothing():
    """Below five percent of the expected cost a new grid is not worth preparing."""
    traffic = traffic_of(4, length={31: 1000, 64: 10})
    assert relearned(COSTS, traffic, ("length",)) == []


def test_thin_traffic_changes_nothing():
    """A few rows say nothing, however far they are from the boundaries."""
    thin = {18: MIN_ROWS - 1}
    assert relearned(COSTS, traffic_of(4, length=thin), ("length",)) == []
    assert relearned(COSTS, traffic_of(4, length={18: MIN_ROWS}), ("length",)) != []


def test_sizes_without_a_bucket_do_not_move_the_largest():
    """They are refused, run unpadded, or extended to: that is for `overflow` to say."""
    traffic = traffic_of(4, length={18: 900, 500: 900})
    assert max(relearned(COSTS, traffic, ("length",))) == (4, 64)


def test_costs_decide_and_not_elements():
    """Where a run costs the same at every size nothing is gained by other sizes."""
    flat = dict.fromkeys(COSTS, 1000.0)
    assert relearned(flat, traffic_of(4, length={18: 900, 40: 900}), ("length",)) == []


def test_an_axis_that_gains_nothing_keeps_its_sizes():
    """Each axis is looked at alone."""
    costs = element_costs(list(itertools.product((4,), (16, 64), (8, 16))))
    traffic = traffic_of(4, length={20: 900}, width={8: 450, 16: 450})
    assert relearned(costs, traffic, ("length", "width")) == [
        (4, length, width) for length in (20, 64) for width in (8, 16)
    ]


def test_a_thinned_grid_stays_as_small_as_it_was():
    """Budgets on elements and graphs hold for the new grid too."""
    costs = {b: c for b, c in COSTS.items() if b not in {(4, 64), (1, 16)}}
    fresh = relearned(costs, traffic_of(4, length={18: 900, 40: 900}), ("length",))
    assert fresh
    assert len(fresh) <= len(costs)
    assert max(rows * size for rows, size in fresh) <= 4 * 32
    assert max(size for _, size in fresh) == 64


def test_a_grid_that_cannot_have_every_combination_says_so():
    """A file may list large sizes on either axis, but not on both at once."""
    costs = element_costs([(1, 8, 64), (1, 64, 8)])
    traffic = traffic_of(1, length={8: 10, 20: 900}, width={64: 900})
    with pytest.raises(ConfigError, match="no bucket within it"):
        relearned(costs, traffic, ("length", "width"))


def test_costs_of_a_row_follow_the_measured_runs():
    """At measured sizes it is the run's cost by row; between, below and above it is estimated."""
    costs = {
        (rows, size): 1000.0 * rows + 10.0 * rows * size for rows in (1, 8) for size in (64, 128)
    }
    cost = size_cost(costs, 0, 8, [0])
    for size in (64, 128):
        assert math.isclose(cost(size), 1000 + 10 * size)
    for size in (1, 16, 100, 500):
        assert math.isclose(cost(size), 1000 + 10 * size)


def test_below_what_was_measured_cost_falls_at_most_in_proportion():
    """A steep start must not make small sizes free, or cost less than nothing."""
    cost = size_cost({(1, 64): 64.0, (1, 128): 1000.0}, 0, 1, [0])
    assert [cost(32), cost(1)] == [32.0, 1.0]
    alone = size_cost({(1, 64): 64.0}, 0, 1, [0])
    assert [alone(64), alone(16)] == [64.0, 16.0]


def test_other_axes_stay_where_they_are():
    """The cost of one axis is that at the other one's usual size."""
    costs = {(1, q, d): float(q * d) for q in (8, 16) for d in (8, 16)}
    assert size_cost(costs, 0, 1, [0, 16])(16) == 256
    assert size_cost(costs, 1, 1, [8, 0])(16) == 128


def test_means_and_limits():
    """A mean is at least one; what a graph refuses is no traffic of it."""
    traffic = histogram_of({1: 1, 10: 3})
    assert mean_of(traffic) == 8
    assert mean_of(SizeHistogram()) == 1
    assert mean_of(histogram_of({0: 4})) == 1
    assert up_to(traffic, None) is traffic
    assert up_to(traffic, 10) is traffic
    assert up_to(traffic, 9).points() == [(1, 1)]


def test_traffic_counts_with_the_least_size_that_runs():
    """What is shorter is padded to it, so it is no boundary."""
    traffic = histogram_of({1: 2, 4: 1, 10: 3})
    assert at_least(traffic, 1) is traffic
    assert at_least(traffic, 4).points() == [(4, 3), (10, 3)]
