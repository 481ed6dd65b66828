"""The shapes that an engine sees are bounded, whatever is sent."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ge_backend.shapes.buckets.grid import covers
from ge_backend.shapes.buckets.known_shapes import MOST_SHAPES, KnownShapes

SHAPES = st.tuples(st.integers(1, 8), st.integers(1, 40))


def test_few_shapes_are_as_they_are_wanted():
    """As long as there are not more than the bound."""
    shapes = KnownShapes(3)
    assert [shapes.shape(s) for s in ((1, 5), (2, 7), (1, 6))] == [(1, 5), (2, 7), (1, 6)]
    assert len(shapes) == 3


def test_beyond_the_bound_a_known_shape_that_covers_is_taken():
    """The smallest of them; known ones stay what they are."""
    shapes = KnownShapes(3)
    for known in ((1, 5), (2, 7), (4, 20)):
        shapes.shape(known)
    assert shapes.shape((1, 4)) == (1, 5)
    assert shapes.shape((2, 6)) == (2, 7)
    assert shapes.shape((3, 7)) == (4, 20)
    assert shapes.shape((1, 5)) == (1, 5)
    assert len(shapes) == 3


def test_no_size_is_below_the_least():
    """Whatever is wanted, of rows as of each axis."""
    shapes = KnownShapes(least=(1, 6, 3))
    assert [shapes.shape(s) for s in ((1, 5, 5), (2, 7, 1))] == [(1, 6, 5), (2, 7, 3)]
    shapes = KnownShapes(least=(4, 1, 3))
    assert [shapes.shape(s) for s in ((1, 5, 5), (7, 7, 1))] == [(4, 5, 5), (7, 7, 3)]


def test_what_is_larger_than_all_runs_as_it_is():
    """And covers what comes after it."""
    shapes = KnownShapes(1)
    shapes.shape((1, 5))
    assert shapes.shape((1, 9)) == (1, 9)
    assert shapes.shape((1, 6)) == (1, 9)


@settings(deadline=None)
@given(st.lists(SHAPES, max_size=300))
def test_every_shape_is_covered_and_their_number_is_bounded(wanted):
    """At most one shape more than the bound per shape that was larger than all before it."""
    shapes, seen, larger = KnownShapes(10), set(), 0
    for one in wanted:
        larger += len(seen) >= 10 and not any(covers(other, one) for other in seen)
        given_shape = shapes.shape(one)
        assert covers(given_shape, one)
        seen.add(given_shape)
    assert len(seen) == len(shapes) <= 10 + larger


def test_the_bound_holds_for_a_day_of_unequal_traffic():
    """Every number of rows with every length: far more shapes than are ever run."""
    shapes = KnownShapes()
    ran = {shapes.shape((rows, size)) for size in range(512, 0, -1) for rows in range(16, 0, -1)}
    assert len(ran) == MOST_SHAPES
