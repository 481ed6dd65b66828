"""Which rows run together, and in which shape."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.generation import sequence
from ge_text.engine.plan import GROUP_TOKENS, ShapeLists, Span, StepShapes, free_groups

BLOCK = 4
DECODE = tuple((b, 1, n) for b in (1, 2, 4) for n in (1, 2, 4, 8))
PROMPT = tuple((1, q, n) for q in (4, 8, 16) for n in (1, 2, 4, 8) if q <= n * BLOCK)


def span(start, count, number=0):
    return Span(sequence(number=number, prompt=(1,) * (start + count)), start, count)


def area(shape):
    return shape[0] * shape[1] * (8 + shape[2])


def shapes(decode=DECODE, prompt=PROMPT, cost=area):
    return StepShapes(ShapeLists(decode, prompt), BLOCK, cost)


def test_free_shapes_are_the_rows_own():
    """All single tokens are one group, longer spans of other lengths others; nothing is padded."""
    spans = [span(9, 1), span(0, 5), span(3, 1), span(4, 2)]
    groups = free_groups(spans, BLOCK)
    assert [group.spans for group in groups] == [(spans[0], spans[2]), (spans[1],), (spans[3],)]
    assert [group.shape for group in groups] == [(2, 1, 3), (1, 5, 2), (1, 2, 2)]
    assert all(group.planned for group in groups)
    assert free_groups([], BLOCK) == []


def test_short_rows_are_apart_where_padding_costs_more_than_a_group():
    """Four long rows and four short ones: two groups, each with the context of its longest row."""
    spans = [span(length, 1) for length in (600, 10, 500, 9, 550, 8, 520, 7)]
    groups = free_groups(spans, BLOCK)
    assert [group.shape for group in groups] == [(4, 1, 151), (4, 1, 3)]
    assert sorted((s for group in groups for s in group.spans), key=id) == sorted(spans, key=id)


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=64))
def test_groups_by_length_hold_every_row_and_never_pad_more(lengths):
    """No row is lost or doubled, and what the groups pad and cost is no more than one group's."""
    spans = [span(length, 1) for length in lengths]
    groups = free_groups(spans, BLOCK)
    found = [s.start for group in groups for s in group.spans]
    assert sorted(found) == sorted(lengths)
    computed = sum(len(g.spans) * max(s.stop for s in g.spans) for g in groups)
    assert computed + GROUP_TOKENS * (len(groups) - 1) <= len(spans) * (max(lengths) + 1)


def test_short_pieces_of_equal_length_run_together():
    """Long ones have enough to compute alone."""
    spans = [span(4, 2), span(0, 20), span(9, 2), span(0, 20), span(1, 3)]
    groups = free_groups(spans, BLOCK)
    assert [group.shape for group in groups] == [(2, 2, 3), (1, 20, 5), (1, 20, 5), (1, 3, 1)]


def test_decoding_rows_share_the_cheapest_shape_that_covers_them():
    """The longest row decides the context, the number of rows the batch."""
    (group,) = shapes().groups([span(1, 1), span(9, 1), span(3, 1)])
    assert (group.shape, group.planned) == ((4, 1, 4), True)


def test_the_cheapest_is_by_cost_and_not_by_size():
    """A larger shape that measured faster is taken."""
    fast = shapes(cost=lambda shape: 0.0 if shape == (4, 1, 8) else area(shape))
    (group,) = fast.groups([span(1, 1)])
    assert group.shape == (4, 1, 8)


def test_more_rows_than_any_batch_are_split_with_long_ones_together():
    """A short row does not pay for the context of a long one where rows are split anyway."""
    spans = [span(1, 1), span(30, 1), span(1, 1), span(30, 1), span(1, 1), span(1, 1)]
    groups = shapes().groups(spans)
    assert [group.shape for group in groups] == [(4, 1, 8), (2, 1, 1)]
    assert [len(group.spans) for group in groups] == [4, 2]


def test_decoding_and_prompts_have_lists_of_their_own():
    """A single token never runs in a prompt's shape, nor a prompt in a decoding one."""
    groups = shapes(cost=lambda shape: 0.0 if shape[1] > 1 else 1.0).groups(
        [span(3, 1), span(0, 3)]
    )
    assert [group.shape for group in groups] == [(1, 1, 1), (1, 4, 1)]


def test_prompts_share_a_shape_where_its_batch_has_room():
    """Prompts whose cheapest shapes differ in nothing but the batch go together."""
    batched = shapes(prompt=(*PROMPT, (2, 4, 1)))
    groups = batched.groups([span(0, 3), span(0, 16), span(0, 4), span(0, 2)])
    assert sorted(group.shape for group in groups) == [(1, 4, 1), (1, 16, 4), (2, 4, 1)]


def test_what_no_shape_covers_runs_in_its_own_and_says_so():
    """A step outside of every bucket is never silent."""
    groups = shapes().groups([span(100, 1), span(0, 20)])
    assert [(group.shape, group.planned) for group in groups] == [
        ((1, 1, 26), False),
        ((1, 20, 5), False),
    ]


def test_the_longest_query_is_that_of_the_prompts():
    """No chunk should be longer than the longest shape."""
    assert shapes().longest_query == 16


@pytest.mark.parametrize("make", [lambda spans: free_groups(spans, BLOCK), shapes().groups])
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 18)), max_size=12))
def test_every_span_is_in_one_group_that_covers_it(make, drawn):
    """Whatever a step has, each span runs exactly once, in a shape that is nowhere too small."""
    spans = [span(start, count, number) for number, (start, count) in enumerate(drawn)]
    groups = make(spans)
    placed = [one for group in groups for one in group.spans]
    assert sorted(placed, key=lambda one: one.sequence.key) == spans
    for group in groups:
        rows, query, context = group.shape
        assert len(group.spans) <= rows
        for one in group.spans:
            assert one.count <= query
            assert one.stop <= context * BLOCK
