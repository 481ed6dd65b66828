import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from ge_backend.shapes.buckets.curve import Curve

CURVES = st.builds(
    Curve, st.integers(1, 999), st.integers(1, 99999), st.integers(1, 12), st.just(False)
)


@given(curve=CURVES, index=st.integers(0, 12), numerator=st.integers(1, 10**5))
def test_compares_with_fractions_exactly(curve, index, numerator):
    """A point is at most a fraction exactly when its power is."""
    index = min(index, curve.intervals)
    point = Fraction(curve.last, curve.first) ** index * Fraction(curve.first) ** curve.intervals
    bound = Fraction(numerator, 2) ** curve.intervals
    assert curve.at_most(index, numerator, 2) == (point <= bound)


@given(curve=CURVES, index=st.integers(0, 12), step=st.integers(1, 64))
def test_rounds_up_to_the_next_multiple(curve, index, step):
    """The rounded point is at least the point, and one step less is not."""
    index = min(index, curve.intervals)
    size = curve.ceil(index, step)
    assert size % step == 0
    assert curve.at_most(index, size, 1)
    assert not curve.at_most(index, size - step, 1)


@given(curve=CURVES, index=st.integers(0, 12), used=st.sets(st.sampled_from(range(8, 200, 8))))
def test_nearest_unused_is_nearest(curve, index, used):
    """No free multiple is nearer to a point than the one that is taken."""
    index = min(index, curve.intervals)
    multiples = range(8, 200, 8)
    free = set(multiples) - used
    taken = curve.nearest_unused(index, multiples, used)
    if not free:
        assert taken is None
        return
    distance = min(abs(size - curve.estimate(index)) for size in free)
    assert taken in free
    assert math.isclose(abs(taken - curve.estimate(index)), distance, rel_tol=1e-9, abs_tol=1e-9)


def test_of_two_equally_near_the_smaller_is_taken():
    """A point in the middle between two free multiples takes the lower one."""
    assert Curve(4, 16, 2, compat=False).nearest_unused(1, range(4, 17, 4), {8}) == 4
    assert Curve(4, 16, 2, compat=True).nearest_unused(1, range(4, 17, 4), {8}) == 4


def test_no_multiples_is_none():
    """An empty range has no free multiple."""
    assert Curve(4, 16, 2, compat=False).nearest_unused(1, range(9, 4, 4), set()) is None
