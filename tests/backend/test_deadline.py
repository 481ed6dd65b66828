"""Deadlines: 0 is none, of one request and of several."""

import pytest

from ge_backend.deadline import earliest, left_s, over


@pytest.mark.parametrize(
    ("deadline_ns", "late"), [(0, False), (1, True), (99, True), (100, True), (101, False)]
)
def test_time_is_over_from_the_deadline_on(deadline_ns, late):
    assert over(deadline_ns, 100) is late


@pytest.mark.parametrize(
    ("deadlines_ns", "first"), [([], 0), ([0], 0), ([7], 7), ([9, 7, 8], 7), ([9, 0, 8], 8)]
)
def test_of_several_one_without_a_deadline_is_never_first(deadlines_ns, first):
    assert earliest(deadlines_ns) == first


def test_what_is_left_is_never_less_than_nothing():
    assert [left_s(ns, 2 * 10**9) for ns in (0, 1, 2 * 10**9, 5 * 10**9)] == [None, 0.0, 0.0, 3.0]
