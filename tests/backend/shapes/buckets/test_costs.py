"""What a run costs: cheapest covering bucket for static engines, interpolation for dynamic ones."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge_backend.shapes.buckets import costs as module
from ge_backend.shapes.buckets.costs import (
    MAX_SHAPES,
    DynamicCosts,
    ShapeCache,
    StaticCosts,
    bounded_costs,
    element_costs,
)
from ge_backend.shapes.buckets.grid import covers

BUCKETS = st.tuples(st.integers(1, 8), st.integers(0, 20), st.integers(0, 20))
TABLES = st.dictionaries(BUCKETS, st.integers(1, 1000).map(float), min_size=1, max_size=12)
ROWS = st.integers(1, 8)
SIZES = st.tuples(st.integers(0, 25), st.integers(0, 25))
SHAPES = st.tuples(st.integers(1, 8), st.integers(1, 40))


def cheapest(table, rows, sizes):
    """The oracle: the least cost of all buckets that cover, inf when none does."""
    asked = (rows, *sizes)
    return min(
        (c for b, c in table.items() if all(h >= a for h, a in zip(b, asked, strict=True))),
        default=math.inf,
    )


@given(TABLES, ROWS, SIZES)
def test_a_static_run_costs_what_the_cheapest_covering_bucket_costs(table, rows, sizes):
    """The chosen bucket covers the rows and none that covers them is cheaper, in any table."""
    costs = StaticCosts(table)
    expected = cheapest(table, rows, sizes)
    bucket = costs.bucket(rows, sizes)
    if rows <= costs.steps[-1]:
        assert costs.cost(rows, sizes) == expected
    if math.isinf(expected):
        assert bucket is None
    else:
        assert table[bucket] == expected
        assert all(have >= asked for have, asked in zip(bucket, (rows, *sizes), strict=True))


@given(TABLES, SIZES)
def test_static_steps_hold_their_own_cost_and_never_fall(table, sizes):
    """The cost of each step is that of so many rows, and more rows never cost less."""
    costs = StaticCosts(table)
    expected = [(step, cheapest(table, step, sizes)) for step in costs.steps]
    by_step = costs.by_step(sizes)
    assert by_step == [entry for entry in expected if math.isfinite(entry[1])]
    assert [cost for _, cost in by_step] == sorted(cost for _, cost in by_step)


@given(TABLES, SIZES)
def test_static_buckets_cover_what_one_row_of_some_bucket_covers(table, sizes):
    """`covers` sees gaps in the table that the limits of single axes do not show."""
    assert StaticCosts(table).covers(sizes) == math.isfinite(cheapest(table, 1, sizes))


def test_the_table_is_searched_once_for_sizes_between_the_same_buckets(monkeypatch):
    """Planning by two axes asks for every pair of sizes that comes."""
    searched, search = [], StaticCosts._covering

    def covering(costs, sizes):
        searched.append(sizes)
        return search(costs, sizes)

    monkeypatch.setattr(StaticCosts, "_covering", covering)
    costs = StaticCosts(element_costs(list(itertools.product((1, 4), (8, 16), (8, 16)))))
    for sizes in itertools.product(range(1, 20), repeat=2):
        costs.cost(1, sizes)
    both = [(a, b) for a, b in searched if a <= 16 and b <= 16]
    assert sorted(both) == [(8, 8), (8, 16), (16, 8), (16, 16)]


def test_static_limits_and_labels_name_the_buckets():
    """Limits are the largest size per axis, over all buckets; a label is the bucket itself."""
    costs = StaticCosts({(1, 64, 8): 1.0, (4, 16, 32): 1.0})
    assert costs.limits == (64, 32)
    assert costs.steps == (1, 4)
    assert costs.label((4, 16, 32)) == "4x16x32"


@given(TABLES, st.integers(1, 70), SIZES)
def test_a_dynamic_run_never_costs_less_with_more_rows(table, max_rows, sizes):
    """Noise in the measurements does not make larger batches look free."""
    costs = DynamicCosts(table, max_rows)
    measured = [costs.cost(rows, sizes) for rows in range(1, max_rows + 1)]
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(measured))
    assert costs.by_step(sizes) == [(step, costs.cost(step, sizes)) for step in costs.steps]


@given(TABLES, SIZES, ROWS)
def test_a_dynamic_run_never_costs_less_with_more_elements(table, sizes, rows):
    """A longer row costs at least as much as a shorter one, as far as rows were measured."""
    costs = DynamicCosts(table, 8)
    rows = min(rows, max(bucket[0] for bucket in table))
    longer = (sizes[0] + 1, sizes[1])
    assert costs.cost(rows, sizes) <= costs.cost(rows, longer) * (1 + 1e-9)


def test_dynamic_costs_are_linear_between_and_beyond_measured_points():
    """At a point its own cost counts, half-way the mean, beyond the last the same slope."""
    table = {(1, 10): 10.0, (1, 20): 30.0, (4, 10): 20.0, (4, 20): 60.0}
    costs = DynamicCosts(table, 8)
    assert [costs.cost(1, (n,)) for n in (5, 10, 15, 20, 30)] == [10, 10, 20, 30, 50]
    assert costs.cost(4, (20,)) == 60
    assert costs.cost(2, (20,)) == 40
    assert costs.cost(7, (20,)) == 90


def test_a_run_of_several_rows_has_no_more_elements_than_allowed():
    """Beyond them a run costs without limit; one row is always possible, however long."""
    costs = DynamicCosts({(1, 10): 10.0, (4, 10): 20.0}, 8, 40)
    assert [costs.cost(rows, (10,)) for rows in (4, 5)] == [20, math.inf]
    assert costs.cost(1, (1000,)) < math.inf
    assert costs.cost(2, (1000,)) == math.inf
    assert [step for step, _ in costs.by_step((13,))] == [1, 2, 3]
    assert [step for step, _ in costs.by_step((1,))] == list(costs.steps)


def test_a_single_measured_point_is_extended_in_proportion():
    """With one point there is no slope, so twice the elements cost twice as much."""
    costs = DynamicCosts({(1, 10): 100.0}, 4)
    assert costs.cost(1, (20,)) == 200
    assert costs.cost(4, (10,)) == 400


def test_points_with_equally_many_elements_count_as_one():
    """4 x 16 and 8 x 8 are one point, the dearer of the two, and divide nothing by zero."""
    costs = DynamicCosts({(1, 4, 16): 10.0, (1, 8, 8): 30.0}, 1)
    assert costs.cost(1, (8, 8)) == 30
    assert costs.cost(1, (16, 8)) == 60


def test_dynamic_engines_run_the_rows_own_shape_and_count_it_under_a_measured_one():
    """The bucket is the shape itself; its label is the measured point at or above it."""
    costs = DynamicCosts({(1, 16): 1.0, (8, 16): 2.0, (1, 64): 3.0, (8, 64): 4.0}, 8)
    assert costs.bucket(3, (17,)) == (3, 17)
    assert costs.label((3, 17)) == "8x64"
    assert costs.label((1, 16)) == "1x16"
    assert costs.label((9, 700)) == "8x64"
    assert costs.covers((64,))
    assert not costs.covers((65,))


@pytest.mark.parametrize("max_rows", [1, 2, 7, 32, 1000])
def test_dynamic_steps_end_with_the_most_rows(max_rows):
    """Every small count is a step, larger ones thin out, and the last is the limit."""
    steps = DynamicCosts({(1,): 1.0}, max_rows).steps
    assert steps[-1] == max_rows
    assert list(steps) == sorted(set(steps))
    assert steps[: min(8, max_rows)] == tuple(range(1, min(8, max_rows) + 1))
    assert len(steps) <= 40


def test_costs_without_axes_depend_on_rows_alone():
    """A model without padded axes has buckets of rows only."""
    assert DynamicCosts({(1,): 10.0, (4,): 16.0}, 4).by_step(()) == [
        (1, 10),
        (2, 12),
        (3, 14),
        (4, 16),
    ]
    assert StaticCosts({(1,): 10.0, (4,): 16.0}).by_step(()) == [(1, 10), (4, 16)]


@pytest.mark.parametrize("kind", [StaticCosts, lambda table: DynamicCosts(table, 4)])
def test_the_memory_of_sizes_is_bounded(kind, monkeypatch):
    """However many lengths come, only so many are remembered, and answers stay the same."""
    monkeypatch.setattr(module, "REMEMBERED_SIZES", 3)
    costs = kind({(1, 64): 64.0, (4, 64): 128.0})
    first = [list(costs.by_step((n,))) for n in range(10)]
    assert [list(costs.by_step((n,))) for n in range(10)] == first
    assert len(costs._by_sizes) <= 3


def test_unmeasured_buckets_cost_their_elements_and_something_per_run():
    """Without warm-up one run of many rows is preferred to many runs."""
    costs = element_costs([(1, 16), (4, 16)])
    assert costs[4, 16] - costs[1, 16] == 48
    assert costs[4, 16] < 4 * costs[1, 16]


@given(TABLES, TABLES)
def test_padded_rows_cost_no_more_than_a_bucket_that_covers_them(table, others):
    """In every dimension; nothing else says anything of them."""
    assert bounded_costs(table, others, packed=False) == {
        bucket: min(cost, cheapest(others, bucket[0], bucket[1:])) for bucket, cost in table.items()
    }


@given(TABLES)
def test_packed_rows_cost_no_more_than_what_has_more_to_do(table):
    """At least as many elements, in rows at least as long: whatever the number of rows."""
    least = bounded_costs(table, table, packed=True)
    assert all(least[bucket] <= cost for bucket, cost in table.items())
    for one, other in itertools.permutations(table, 2):
        if math.prod(one[1:]) >= math.prod(other[1:]) and math.prod(one) >= math.prod(other):
            assert least[one] >= least[other]


def test_what_a_busy_machine_measured_of_packed_rows_is_bounded():
    """Two runs were stopped in between; others that have as much to do say what they take."""
    measured = {(1, 16): 2.0, (1, 64): 5.0, (4, 16): 20.0, (2, 32): 4.9, (4, 64): 15.0}
    measured |= {(8, 32): 60.0, (16, 16): 14.0}
    expected = measured | {(4, 16): 4.9, (8, 32): 15.0}
    assert bounded_costs(measured, measured, packed=True) == expected


def test_few_shapes_are_as_they_are_wanted():
    """As long as there are not more than the bound."""
    shapes = ShapeCache(3)
    assert [shapes.shape(s) for s in ((1, 5), (2, 7), (1, 6))] == [(1, 5), (2, 7), (1, 6)]
    assert len(shapes) == 3


def test_beyond_the_bound_a_known_shape_that_covers_is_taken():
    """The smallest of them; known ones stay what they are."""
    shapes = ShapeCache(3)
    for known in ((1, 5), (2, 7), (4, 20)):
        shapes.shape(known)
    assert shapes.shape((1, 4)) == (1, 5)
    assert shapes.shape((2, 6)) == (2, 7)
    assert shapes.shape((3, 7)) == (4, 20)
    assert shapes.shape((1, 5)) == (1, 5)
    assert len(shapes) == 3


def test_no_size_is_below_the_least():
    """Whatever is wanted, of rows as of each axis."""
    shapes = ShapeCache(least=(1, 6, 3))
    assert [shapes.shape(s) for s in ((1, 5, 5), (2, 7, 1))] == [(1, 6, 5), (2, 7, 3)]
    shapes = ShapeCache(least=(4, 1, 3))
    assert [shapes.shape(s) for s in ((1, 5, 5), (7, 7, 1))] == [(4, 5, 5), (7, 7, 3)]


def test_what_is_larger_than_all_runs_as_it_is():
    """And covers what comes after it."""
    shapes = ShapeCache(1)
    shapes.shape((1, 5))
    assert shapes.shape((1, 9)) == (1, 9)
    assert shapes.shape((1, 6)) == (1, 9)


@settings(deadline=None)
@given(st.lists(SHAPES, max_size=300))
def test_every_shape_is_covered_and_their_number_is_bounded(wanted):
    """At most one shape more than the bound per shape that was larger than all before it."""
    shapes, seen, larger = ShapeCache(10), set(), 0
    for one in wanted:
        larger += len(seen) >= 10 and not any(covers(other, one) for other in seen)
        given_shape = shapes.shape(one)
        assert covers(given_shape, one)
        seen.add(given_shape)
    assert len(seen) == len(shapes) <= 10 + larger


def test_the_bound_holds_for_a_day_of_unequal_traffic():
    """Every number of rows with every length: far more shapes than are ever run."""
    shapes = ShapeCache()
    ran = {shapes.shape((rows, size)) for size in range(512, 0, -1) for rows in range(16, 0, -1)}
    assert len(ran) == MAX_SHAPES


@pytest.fixture
def mixed():
    table = {(1, 16): 10.0, (4, 16): 20.0, (1, 64): 40.0}
    return StaticCosts(table, DynamicCosts(table, 8))


def test_rows_go_to_the_cheapest_bucket_that_covers_them(mixed):
    """As with static shapes."""
    assert (mixed.bucket(1, (5,)), mixed.cost(1, (5,))) == ((1, 16), 10.0)
    assert (mixed.bucket(3, (5,)), mixed.cost(3, (5,))) == ((4, 16), 20.0)
    assert mixed.by_step((5,)) == [(1, 10.0), (4, 20.0)]
    assert mixed.covers((64,))
    assert (mixed.steps, mixed.limits) == ((1, 4), (64,))


def test_what_no_bucket_covers_runs_in_its_own_shape(mixed):
    """At what is extrapolated for it, so that it can be planned."""
    assert not mixed.covers((100,))
    assert mixed.bucket(2, (100,)) == (2, 100)
    assert 40.0 < mixed.cost(1, (100,)) < 1000
    assert mixed.by_step((100,))[0][1] == mixed.cost(1, (100,))
    assert mixed.bucket(4, (60,)) == (4, 60)
    assert mixed.cost(4, (60,)) < 1000


def test_labels_are_no_more_than_the_measured_points(mixed):
    """A bucket's own, and the point at or above any other shape."""
    assert mixed.label((4, 16)) == "4x16"
    assert mixed.label((2, 100)) == "4x64"
    mixed.observe((1, 16), 99.0)
    assert mixed.cost(1, (5,)) == 10.0
