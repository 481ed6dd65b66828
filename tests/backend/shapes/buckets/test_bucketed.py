"""Costs where rows are padded to buckets although any shape runs."""

import pytest

from ge_backend.shapes.buckets.bucketed import BucketedCosts
from ge_backend.shapes.buckets.costs import DynamicCosts, StaticCosts

TABLE = {(1, 16): 10.0, (4, 16): 20.0, (1, 64): 40.0}


@pytest.fixture
def costs():
    return BucketedCosts(StaticCosts(TABLE), DynamicCosts(TABLE, 8))


def test_rows_go_to_the_cheapest_bucket_that_covers_them(costs):
    """As with static shapes."""
    assert (costs.bucket(1, (5,)), costs.cost(1, (5,))) == ((1, 16), 10.0)
    assert (costs.bucket(3, (5,)), costs.cost(3, (5,))) == ((4, 16), 20.0)
    assert costs.by_step((5,)) == [(1, 10.0), (4, 20.0)]
    assert costs.covers((64,))
    assert (costs.steps, costs.limits) == ((1, 4), (64,))


def test_what_no_bucket_covers_runs_in_its_own_shape(costs):
    """At what is extrapolated for it, so that it can be planned."""
    assert not costs.covers((100,))
    assert costs.bucket(2, (100,)) == (2, 100)
    assert 40.0 < costs.cost(1, (100,)) < 1000
    assert costs.by_step((100,))[0][1] == costs.cost(1, (100,))
    assert costs.bucket(4, (60,)) == (4, 60)
    assert costs.cost(4, (60,)) < 1000


def test_labels_are_no_more_than_the_measured_points(costs):
    """A bucket's own, and the point at or above any other shape."""
    assert costs.label((4, 16)) == "4x16"
    assert costs.label((2, 100)) == "4x64"
    costs.observe((1, 16), 99.0)
    assert costs.cost(1, (5,)) == 10.0
