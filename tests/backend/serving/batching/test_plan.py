"""The planner against brute force: no cut of a batch costs less than the one it chooses."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge_backend.errors import ShapeTooLarge
from ge_backend.serving.batching import plan as planning
from ge_backend.serving.batching.plan import (
    LANE_SLACK,
    Policy,
    RowSpan,
    plan,
    run_of,
    side_by_side,
)
from ge_backend.serving.batching.request import Request
from ge_backend.shapes.buckets.costs import DynamicCosts, StaticCosts

ONE_AXIS = Policy(axes=("length",))
COSTS = st.integers(1, 1000).map(float)
TABLES = st.dictionaries(
    st.tuples(st.sampled_from([1, 2, 3, 4, 6, 8]), st.integers(0, 20)),
    COSTS,
    min_size=1,
    max_size=10,
)
WIDE_TABLES = st.dictionaries(
    st.tuples(st.integers(1, 5), st.integers(0, 6), st.integers(0, 6)),
    COSTS,
    min_size=1,
    max_size=10,
)


def requests_of(shapes, equal_sizes=None):
    """Requests of (rows, sizes); the planner looks at nothing else."""
    return [
        Request(
            index=i,
            rows=rows,
            tensors={},
            sizes=sizes,
            equal_sizes=() if equal_sizes is None else equal_sizes[i],
        )
        for i, (rows, sizes) in enumerate(shapes)
    ]


def shapes(max_rows, max_size, num_axes=1):
    """Requests of at most `max_rows` rows together."""
    one = st.tuples(st.integers(1, 3), st.tuples(*[st.integers(0, max_size)] * num_axes))
    return st.lists(one, min_size=1, max_size=max_rows).filter(
        lambda drawn: sum(rows for rows, _ in drawn) <= max_rows
    )


def cheapest(table, rows, sizes):
    """The least cost of the buckets that cover, inf when none does."""
    asked = (rows, *sizes)
    return min(
        (c for b, c in table.items() if all(h >= a for h, a in zip(b, asked, strict=True))),
        default=math.inf,
    )


def partitions(items):
    """Every way to put the items into groups."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for groups in partitions(rest):
        yield [[first], *groups]
        for at, group in enumerate(groups):
            yield [*groups[:at], [first, *group], *groups[at + 1 :]]


def best_contiguous(rows, cost, counts=None):
    """The least cost over all cuts of the sorted rows into neighbours."""
    least = [0.0]
    for end in range(1, len(rows) + 1):
        allowed = [k for k in range(1, end + 1) if counts is None or k in counts or k == end]
        least.append(min(least[end - k] + cost(rows[end - k : end]) for k in allowed))
    return least[-1]


def covering(group):
    return tuple(map(max, zip(*group, strict=True)))


def rows_of(drawn, costs):
    """The sizes of every row that the cost model covers, sorted."""
    return sorted(s for rows, s in drawn for _ in range(rows) if costs.covers(s))


def total(batch):
    return sum(sub_batch.cost_ns for sub_batch in batch.sub_batches if sub_batch.planned)


@settings(max_examples=150)
@given(TABLES, shapes(6, 22))
def test_no_partition_of_the_rows_costs_less(table, drawn):
    """For any table, with gaps and not monotonic, the plan is the best of all set partitions."""
    costs = StaticCosts(table)
    rows = rows_of(drawn, costs)
    expected = min(
        sum(cheapest(table, len(group), covering(group)) for group in groups)
        for groups in partitions(rows)
    )
    batch = plan(requests_of(drawn), costs, Policy(axes=("length",), refuse_overflow=True))
    assert total(batch) == pytest.approx(expected)


@settings(max_examples=100)
@given(TABLES, shapes(40, 20))
def test_no_cut_into_neighbours_costs_less(table, drawn):
    """For many rows the plan is the best of all cuts of the sorted rows."""
    costs = StaticCosts(table)
    rows = rows_of(drawn, costs)
    expected = best_contiguous(rows, lambda g: cheapest(table, len(g), g[-1]))
    batch = plan(requests_of(drawn), costs, Policy(axes=("length",), refuse_overflow=True))
    assert total(batch) == pytest.approx(expected)


@settings(max_examples=100)
@given(WIDE_TABLES, shapes(12, 6, num_axes=2))
def test_with_several_axes_no_cut_into_neighbours_costs_less(table, drawn):
    """With two axes the plan is the best cut of the rows in the order that it sorts them in."""
    costs = StaticCosts(table)
    rows = rows_of(drawn, costs)
    expected = best_contiguous(rows, lambda g: cheapest(table, len(g), covering(g)))
    batch = plan(requests_of(drawn), costs, Policy(axes=("a", "b"), refuse_overflow=True))
    assert total(batch) == pytest.approx(expected)


@settings(max_examples=100)
@given(TABLES, st.integers(1, 40), shapes(40, 20))
def test_a_dynamic_plan_is_the_best_cut_into_steps(table, max_rows, drawn):
    """Among runs of as many rows as a step, or of all that is left, none costs less."""
    costs = DynamicCosts(table, max_rows)
    rows = rows_of(drawn, costs)
    expected = best_contiguous(
        rows,
        lambda g: costs.cost(len(g), g[-1]) if len(g) <= max_rows else math.inf,
        counts=set(costs.steps),
    )
    assert total(plan(requests_of(drawn), costs, ONE_AXIS)) == pytest.approx(expected)


@given(TABLES, shapes(20, 25), st.integers(1, 60), st.integers(1, 3))
def test_no_run_of_several_rows_has_more_elements_than_allowed(table, drawn, most, lanes):
    """Nor one of a request that is longer than everything measured; single rows always run."""
    costs = DynamicCosts(table, 8, most)
    batch = plan(requests_of(drawn), costs, Policy(axes=("length",), lanes=lanes))
    assert sum(sub_batch.rows for sub_batch in batch.sub_batches) == sum(r for r, _ in drawn)
    for sub_batch in batch.sub_batches:
        assert sub_batch.rows == 1 or math.prod(sub_batch.bucket) <= most
        assert sub_batch.cost_ns < math.inf


@pytest.mark.parametrize("refuse", [True, False])
@given(table=TABLES, drawn=shapes(20, 25), dynamic=st.booleans(), lanes=st.integers(1, 3))
def test_every_row_is_planned_exactly_once_in_a_shape_that_covers_it(
    refuse, table, drawn, dynamic, lanes
):
    """Rows are neither lost nor doubled; only requests that nothing covers are refused."""
    costs = DynamicCosts(table, 8) if dynamic else StaticCosts(table)
    policy = Policy(axes=("length",), lanes=lanes, refuse_overflow=refuse)
    requests = requests_of(drawn)
    batch = plan(requests, costs, policy)
    seen = []
    for sub_batch in batch.sub_batches:
        assert sub_batch.rows == sum(span.count for span in sub_batch.spans)
        assert sub_batch.rows <= sub_batch.bucket[0]
        for span in sub_batch.spans:
            seen += [(span.request, span.first + i) for i in range(span.count)]
            assert requests[span.request].sizes[0] <= sub_batch.bucket[1]
            assert sub_batch.planned == costs.covers(requests[span.request].sizes)
    refused = [position for position, _ in batch.refused]
    expected = [
        (i, row)
        for i, request in enumerate(requests)
        for row in range(request.rows)
        if i not in refused
    ]
    assert sorted(seen) == expected
    uncovered = [i for i, request in enumerate(requests) if not costs.covers(request.sizes)]
    assert refused == (uncovered if refuse else [])


@given(TABLES, shapes(20, 20), st.integers(2, 4))
def test_more_lanes_cost_at_most_the_stated_slack(table, drawn, lanes):
    """Using idle lanes may cost more in total, but only so much."""
    costs = StaticCosts(table)
    policy = Policy(axes=("length",), lanes=lanes, refuse_overflow=True)
    alone = plan(requests_of(drawn), costs, Policy(axes=("length",), refuse_overflow=True))
    assert total(plan(requests_of(drawn), costs, policy)) <= total(alone) * LANE_SLACK + 1e-6


def test_idle_lanes_take_rows_where_that_ends_sooner():
    """Two rows that cost nearly as much together as apart run side by side."""
    requests = requests_of([(1, (8,)), (1, (8,))])
    side_by_side = StaticCosts({(1, 8): 10.0, (2, 8): 18.0})
    together = StaticCosts({(1, 8): 10.0, (2, 8): 11.0})
    two_lanes = Policy(axes=("length",), lanes=2)
    assert len(plan(requests, side_by_side, ONE_AXIS).sub_batches) == 1
    assert len(plan(requests, side_by_side, two_lanes).sub_batches) == 2
    assert len(plan(requests, together, two_lanes).sub_batches) == 1


@given(TABLES, st.lists(st.tuples(st.just(1), st.tuples(st.integers(1, 20))), max_size=60))
def test_lanes_change_nothing_where_runs_are_short_beside_the_whole(table, drawn):
    """There is enough for every lane as it is, and the cut of least cost is not cut again."""
    costs = StaticCosts(table)
    requests = requests_of(drawn)
    alone = plan(requests, costs, ONE_AXIS)
    most = max((sub_batch.cost_ns for sub_batch in alone.sub_batches), default=0)
    if most <= total(alone) / 2 * LANE_SLACK and all(s.planned for s in alone.sub_batches):
        assert plan(requests, costs, replace(ONE_AXIS, lanes=2)) == alone


@given(TABLES, st.integers(1, 40), st.integers(0, 20), st.integers(1, 3))
def test_rows_of_equal_sizes_are_cut_as_any_others(table, count, size, lanes):
    """Whether they had better all run together is seen without a search, and as it would find."""
    policy = replace(ONE_AXIS, lanes=lanes)
    requests = requests_of([(1, (size,))] * count)
    costs = DynamicCosts(table, max_rows=32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_is_one_run", lambda *_: False)
        searched = plan(requests, costs, policy).sub_batches
    assert plan(requests, costs, policy).sub_batches == searched


def test_rows_that_cost_as_much_alone_run_alone():
    """Where a user has named that bucket, a longer run gains nothing and is not prepared."""
    batch = plan(requests_of([(8, (4,))]), DynamicCosts({(1, 4): 5.0}, max_rows=8), ONE_AXIS)
    assert [run.rows for run in batch.sub_batches] == [1] * 8


def test_requests_of_different_keys_never_run_together():
    """Axes that are not padded must be equal within a run, even where that costs more."""
    requests = requests_of([(1, (8,))] * 4, equal_sizes=[(1,), (2,), (1,), (2,)])
    batch = plan(requests, StaticCosts({(1, 8): 10.0, (4, 8): 10.0}), ONE_AXIS)
    runs = sorted(tuple(span.request for span in s.spans) for s in batch.sub_batches)
    assert runs == [(0, 2), (1, 3)]


def test_the_run_with_the_oldest_request_goes_first():
    """However dear it is: a long row would else be the last of every batch."""
    costs = StaticCosts({(1, 8): 20.0, (4, 64): 40.0})
    for sizes, first in (((64, 8), (4, 64)), ((8, 64), (1, 8))):
        requests = requests_of([(1 if size == 8 else 4, (size,)) for size in sizes])
        assert plan(requests, costs, ONE_AXIS).sub_batches[0].bucket == first


def test_a_request_larger_than_the_largest_run_is_cut_into_spans():
    """A client's batch of 5 goes through buckets of 2 rows and one of 1."""
    batch = plan(requests_of([(5, (8,))]), StaticCosts({(1, 8): 9.0, (2, 8): 10.0}), ONE_AXIS)
    assert sorted(s.bucket for s in batch.sub_batches) == [(1, 8), (2, 8), (2, 8)]
    spans = [span for s in batch.sub_batches for span in s.spans]
    assert sorted(s.first + i for s in spans for i in range(s.count)) == [0, 1, 2, 3, 4]


def test_rows_of_neighbouring_requests_share_a_run():
    """A run takes the end of one request and the start of the next."""
    batch = plan(requests_of([(3, (8,)), (1, (8,))]), StaticCosts({(2, 8): 10.0}), ONE_AXIS)
    assert [s.spans for s in batch.sub_batches] == [
        (RowSpan(0, 0, 2),),
        (RowSpan(0, 2, 1), RowSpan(1, 0, 1)),
    ]


def test_an_oversized_request_is_refused_with_the_limit():
    """The message names the axis, the size, the limit, and the parameter that changes it."""
    policy = Policy(axes=("length",), refuse_overflow=True)
    batch = plan(requests_of([(1, (9,)), (1, (8,))]), StaticCosts({(1, 8): 1.0}), policy)
    ((position, error),) = batch.refused
    assert position == 0
    assert isinstance(error, ShapeTooLarge)
    assert "'length' is 9, the largest bucket is 8" in str(error)
    assert "'buckets.length'" in str(error)
    assert len(batch.sub_batches) == 1


def test_sizes_that_only_together_fit_no_bucket_are_refused_too():
    """Each axis is within its limit, but no bucket has both."""
    policy = Policy(axes=("height", "width"), refuse_overflow=True)
    costs = StaticCosts({(1, 64, 8): 1.0, (1, 8, 64): 1.0})
    ((_, error),) = plan(requests_of([(1, (64, 64))]), costs, policy).refused
    assert "'height' is 64, 'width' is 64" in str(error)


def test_an_oversized_request_runs_alone_at_its_own_shape():
    """Without refusal its rows are cut at the most that one run takes, and counted as unplanned."""
    costs = DynamicCosts({(1, 8): 8.0, (2, 8): 12.0}, 2)
    batch = plan(requests_of([(3, (20,)), (1, (4,))]), costs, ONE_AXIS)
    oversized = [s for s in batch.sub_batches if not s.planned]
    assert [s.bucket for s in oversized] == [(2, 20), (1, 20)]
    assert all(math.isfinite(s.cost_ns) for s in oversized)
    assert len(batch.sub_batches) == 3


def test_nothing_to_do_is_an_empty_plan():
    """No requests, no runs."""
    assert plan([], StaticCosts({(1, 8): 1.0}), ONE_AXIS).sub_batches == ()


PACKED = Policy(axes=("length",), packed=True)
# A run costs 10 and its elements.
PER_ELEMENT = DynamicCosts({(1, 1): 11.0, (1, 64): 74.0, (8, 1): 18.0, (8, 64): 522.0}, 16)


@given(shapes(40, 64), st.integers(1, 3))
@settings(max_examples=200)
def test_packed_rows_all_run_once_in_runs_that_fit(drawn, lanes):
    """Each row once, the padded shape covers it, and no run has more rows than one takes."""
    requests = requests_of([(rows, (max(1, size),)) for rows, (size,) in drawn])
    policy = Policy(axes=("length",), packed=True, lanes=lanes)
    found = plan(requests, PER_ELEMENT, policy).sub_batches
    seen = [
        (span.request, row)
        for part in found
        for span in part.spans
        for row in range(span.first, span.first + span.count)
    ]
    assert sorted(seen) == [(r.index, row) for r in requests for row in range(r.rows)]
    for part in found:
        sizes = [requests[span.request].sizes[0] for span in part.spans for _ in range(span.count)]
        assert part.rows <= 16
        assert part.bucket == (part.rows, max(sizes))
        assert part.priced == (part.rows, math.ceil(sum(sizes) / len(sizes)))
        assert part.cost_ns == PER_ELEMENT.cost(part.rows, part.priced[1:])


def test_packed_rows_are_not_priced_by_the_longest():
    """One long row beside short ones is one run, where padding would make two."""
    requests = requests_of([(1, (2,))] * 8 + [(1, (64,))])
    (packed,) = plan(requests, PER_ELEMENT, PACKED).sub_batches
    assert packed.priced == (9, 9)
    assert len(plan(requests, PER_ELEMENT, ONE_AXIS).sub_batches) == 2


def test_packed_rows_are_cut_evenly_for_lanes():
    """Two lanes get about as many elements each."""
    requests = requests_of([(1, (size,)) for size in (4, 4, 4, 4, 8, 8, 16, 16, 32, 32)])
    policy = Policy(axes=("length",), packed=True, lanes=2)
    parts = plan(requests, PER_ELEMENT, policy).sub_batches
    sums = [sum(requests[span.request].sizes[0] for span in part.spans) for part in parts]
    assert len(sums) == 2
    assert sorted(sums) == [64, 64]


class Alone(DynamicCosts):
    """Costs of runs that take a share of the time where they have the whole device."""

    share = 1.0

    def expected(self, cost_ns, *, alone):
        return cost_ns * self.share if alone else cost_ns


@pytest.mark.parametrize(("share", "runs", "together"), [(0.4, 1, False), (0.9, 2, True)])
@pytest.mark.parametrize("packed", [False, True])
def test_runs_have_the_whole_device_in_turn_where_that_ends_sooner(
    monkeypatch, packed, share, runs, together
):
    """As runs that were alone say; and only where nothing else comes to the lanes."""
    monkeypatch.setattr(Alone, "share", share)
    costs = Alone({(1, 8): 30.0, (2, 8): 40.0, (4, 8): 60.0, (8, 8): 100.0}, 8)
    policy = Policy(axes=("length",), lanes=2, in_turn=True, packed=packed)
    batch = plan(requests_of([(1, (8,))] * 8), costs, policy)
    assert len(batch.sub_batches) == runs
    four = [run_of((RowSpan(0, 0, 4),), (8,), costs)] * 2
    assert side_by_side(four, costs, policy) == together
    assert side_by_side(four, costs, replace(policy, in_turn=False))
    assert not side_by_side(four, costs, replace(policy, lanes=1))


def test_packed_rows_run_in_the_order_in_which_they_came():
    """So that none waits longest twice: sorted, a long row would be the last of every batch."""
    requests = requests_of([(1, (size,)) for size in (64, 2, 30, 2, 64, 4, 4, 30)])
    parts = plan(requests, PER_ELEMENT, replace(PACKED, lanes=3)).sub_batches
    assert len(parts) == 3
    assert [span.request for part in parts for span in part.spans] == list(range(8))


def test_packed_rows_get_early_answers_where_that_costs_hardly_more():
    """Where a run itself costs next to nothing there are several."""
    free = DynamicCosts({(1, 1): 1.0, (1, 64): 64.0, (16, 1): 16.0, (16, 64): 1024.0}, 16)
    requests = requests_of([(1, (20,))] * 16)
    assert len(plan(requests, free, PACKED).sub_batches) > 2
    assert len(plan(requests, PER_ELEMENT, PACKED).sub_batches) == 2


@given(shapes(40, 80), st.integers(1, 3), st.integers(1, 300))
@settings(max_examples=200)
def test_packed_runs_of_several_rows_keep_to_the_most_elements(drawn, lanes, most):
    """What rows really have counts, beyond the largest bucket too, and every run has a price."""
    requests = requests_of([(rows, (max(1, size),)) for rows, (size,) in drawn])
    policy = Policy(axes=("length",), packed=True, lanes=lanes, max_elements=most)
    found = plan(requests, PER_ELEMENT, policy).sub_batches
    assert sum(part.rows for part in found) == sum(request.rows for request in requests)
    for part in found:
        sizes = [requests[span.request].sizes[0] for span in part.spans for _ in range(span.count)]
        assert part.rows == 1 or sum(sizes) <= most
        assert math.isfinite(part.cost_ns)
