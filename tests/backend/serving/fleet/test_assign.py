"""Sub-batches go where they end soonest, and none is lost."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.serving.fleet.assign import DeviceLoad, assign

COSTS = st.lists(st.integers(1, 100), max_size=12)
OUTSTANDING = st.lists(st.integers(0, 200), min_size=1, max_size=5)


def ends_of(costs, outstanding, places):
    """Return when each device is done."""
    ends = list(outstanding)
    for cost, place in zip(costs, places, strict=True):
        ends[place] += cost
    return ends


def loads_of(outstanding):
    return [DeviceLoad(ns) for ns in outstanding]


@given(COSTS, OUTSTANDING)
def test_every_sub_batch_gets_one_device_that_exists(costs, outstanding):
    """However many there are of either."""
    places = assign(costs, loads_of(outstanding))
    assert len(places) == len(costs)
    assert set(places) <= set(range(len(outstanding)))


@given(COSTS, OUTSTANDING)
def test_no_device_would_have_ended_sooner(costs, outstanding):
    """Without the last thing it was given, no device is done later than any other."""
    places = assign(costs, loads_of(outstanding))
    ends = ends_of(costs, outstanding, places)
    for place in set(places):
        last = min(cost for cost, at in zip(costs, places, strict=True) if at == place)
        assert ends[place] - last <= min(ends)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(2, 3))
def test_idle_devices_are_done_within_four_thirds_of_the_best(costs, devices):
    """Graham's bound, against every assignment there is."""
    got = max(ends_of(costs, [0] * devices, assign(costs, loads_of([0] * devices))))
    best = min(
        max(ends_of(costs, [0] * devices, places))
        for places in product(range(devices), repeat=len(costs))
    )
    assert 3 * devices * got <= (4 * devices - 1) * best


@given(COSTS, OUTSTANDING, st.integers(1, 50))
def test_only_differences_between_devices_count(costs, outstanding, more):
    """The same work waiting everywhere changes nothing."""
    later = [ns + more for ns in outstanding]
    assert assign(costs, loads_of(later)) == assign(costs, loads_of(outstanding))


@given(COSTS, st.integers(0, 200))
def test_one_device_gets_all(costs, outstanding):
    """As without any assignment."""
    assert assign(costs, [DeviceLoad(outstanding)]) == (0,) * len(costs)


def test_unequal_shapes_balance_by_cost():
    """One long run on one device weighs as much as many short ones on the other."""
    places = assign([10, 10, 90, 10, 10, 10, 40], loads_of([0, 0]))
    assert places == (1, 1, 0, 1, 1, 1, 1)


def test_what_others_have_sent_counts():
    """A device that is busy with other models' work is left alone until the rest is as late."""
    assert assign([30, 30, 30], loads_of([100, 0])) == (1, 1, 1)
    assert assign([30, 30, 30], loads_of([50, 0])) == (1, 1, 0)


@pytest.mark.parametrize(("given_ns", "place"), [((0, 0), 0), ((5, 0), 1), ((0, 5), 0)])
def test_equals_take_turns(given_ns, place):
    """Of equally loaded devices the one that was given less so far is next."""
    assert assign([7], [DeviceLoad(0, ns) for ns in given_ns]) == (place,)


def test_single_runs_to_idle_devices_share_in_proportion():
    """A stream of unequal runs, each ended before the next, is spread evenly by cost."""
    given_ns = [0.0, 0.0, 0.0]
    for cost in [90, 10, 20, 30, 30, 60, 90, 30] * 20:
        (place,) = assign([cost], [DeviceLoad(0, ns) for ns in given_ns])
        given_ns[place] += cost
    assert max(given_ns) - min(given_ns) <= 90
