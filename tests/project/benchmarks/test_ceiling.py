"""The pure part of the ceiling: how rows are cut and which layouts are tried."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.probes.ceiling import MANY, Cut, Layout, cut_sorted, cuts, layouts

LENGTHS = st.lists(st.integers(1, 256), min_size=1, max_size=200)


@given(LENGTHS, st.sampled_from(cuts()))
def test_a_cut_keeps_every_row_and_its_limits(lengths, cut):
    """Every row is in one batch; no batch of several rows exceeds the limit on rows or tokens."""
    batches = cut_sorted(lengths, cut)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[position] for position in batch)
        assert len(batch) <= cut.rows
        assert len(batch) == 1 or len(batch) * longest <= cut.elements


@given(LENGTHS)
def test_batches_are_sorted_longest_first(lengths):
    """Rows of a batch are neighbours in length, and the longest batches come first."""
    flat = [lengths[position] for batch in cut_sorted(lengths, Cut(4, MANY)) for position in batch]
    assert flat == sorted(lengths, reverse=True)


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, (Layout(1, 1, 1),)),
        (2, (Layout(1, 1, 2), Layout(1, 2, 1), Layout(2, 1, 1))),
    ],
)
def test_layouts_use_every_core_once(cores, expected):
    """Threads, lanes and processes each get all cores in turn; equal layouts are tried once."""
    assert layouts(cores) == expected
