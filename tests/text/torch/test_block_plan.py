"""Plans of reading blocks in place: every row's blocks are read once, in runs of neighbours."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge_text.models.batch import Group
from ge_text.torch import block_plan
from ge_text.torch.block_plan import BlockRun, plan_blocks

SIZE, MANY = 4, 2**22


def group(tables, lengths):
    width = max(map(len, tables))
    padded = [[*table, *[0] * (width - len(table))] for table in tables]
    return Group(rows=len(tables), query=1, tables=np.array(padded), lengths=np.array(lengths))


def planned(tables, lengths, block_bytes=MANY):
    return plan_blocks(group(tables, lengths), SIZE, block_bytes)


def test_neighbouring_blocks_are_one_run():
    """In whatever order rows have them; an entry knows whose it is and where its keys begin."""
    plan = planned([[5, 4], [7, 6, 8]], [7, 12])
    assert plan.runs == (BlockRun(first=4, end=9, readers=1, entry=0),)
    assert plan.owner.tolist() == [0, 0, 1, 1, 1]
    assert plan.first.tolist() == [4, 0, 4, 0, 8]
    assert plan.entries.tolist() == [[1, 0, 5], [3, 2, 4]]


def test_shared_blocks_are_a_run_of_their_own():
    """Each of their readers has an entry, side by side."""
    plan = planned([[3, 4, 6], [3, 4, 5], [7]], [12, 9, 2])
    assert plan.runs == (
        BlockRun(first=3, end=5, readers=2, entry=0),
        BlockRun(first=5, end=8, readers=1, entry=4),
    )
    assert plan.owner.tolist() == [0, 1, 0, 1, 1, 0, 2]
    assert plan.entries.tolist() == [[0, 2, 5], [1, 3, 4], [6, 7, 7]]


def test_small_gaps_are_bridged_and_large_ones_not(monkeypatch):
    """What lies between is read for nothing where that is cheaper than a product more."""
    monkeypatch.setattr(block_plan, "RUN_BYTES", 2 * MANY)
    monkeypatch.setattr(block_plan, "FIXED_BYTES", -(10**9))
    plan = planned([[2, 5, 9]], [12])
    assert plan.runs == (
        BlockRun(first=2, end=6, readers=1, entry=0),
        BlockRun(first=9, end=10, readers=1, entry=4),
    )
    assert plan.entries.tolist() == [[0, 3, 4]]
    assert (plan.first[[1, 2]] > 10**9).all()


def test_a_row_of_padding_reads_the_block_of_padding():
    """It has no keys, and yet something to look at."""
    plan = planned([[3], [0], [0]], [4, 0, 0])
    assert plan.runs[0] == BlockRun(first=0, end=1, readers=2, entry=0)
    assert plan.entries.tolist() == [[2], [0], [1]]


@pytest.mark.parametrize(
    ("tables", "block_bytes"),
    [
        ([list(range(1, 11))], 2**14),  # one row of few keys
        ([[1, 2], [3, 4], [5, 6]], 2**12),  # several
        ([[index * 1000] for index in range(1, 9)], MANY // 64),  # blocks far from each other
    ],
)
def test_where_gathering_is_cheaper_nothing_is_planned(tables, block_bytes):
    """A few keys are copied in no time; scattered blocks would each be a product."""
    assert planned(tables, [SIZE * len(table) for table in tables], block_bytes) is None


def test_unequal_rows_are_read_in_place_where_equal_ones_are_gathered():
    """Gathering pads every row to the longest; in place nothing is padded."""
    tables = [list(range(1, 101)), *[[100 + index] for index in range(1, 8)]]
    lengths = [SIZE * len(table) for table in tables]
    assert planned(tables, lengths, 2**13) is not None
    even = [list(range(1 + 13 * row, 14 + 13 * row)) for row in range(8)]
    assert planned(even, [SIZE * 13] * 8, 2**13) is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(1, 30), min_size=1, max_size=6, unique=True), min_size=1, max_size=5
    ),
    st.integers(0, 5),
    st.integers(0, SIZE - 1),
)
def test_every_row_finds_its_own_blocks_in_its_own_order(tables, bridge, short):
    """Whatever is shared, scattered or in the way."""
    lengths = [SIZE * len(table) - short for table in tables]
    before = block_plan.FIXED_BYTES, block_plan.RUN_BYTES
    try:
        block_plan.FIXED_BYTES, block_plan.RUN_BYTES = -(10**9), bridge * 8
        plan = planned(tables, lengths, 8)
    finally:
        block_plan.FIXED_BYTES, block_plan.RUN_BYTES = before
    blocks = np.concatenate(
        [np.repeat(np.arange(run.first, run.end), run.readers) for run in plan.runs]
    )
    assert [run.entry for run in plan.runs] == np.cumsum(
        [0, *((run.end - run.first) * run.readers for run in plan.runs[:-1])]
    ).tolist()
    taken = []
    for row, table in enumerate(tables):
        own = plan.entries[row, : len(table)]
        assert blocks[own].tolist() == table
        assert plan.owner[own].tolist() == [row] * len(table)
        assert plan.first[own].tolist() == [SIZE * index for index in range(len(table))]
        assert (plan.entries[row, len(table) :] == len(blocks)).all()
        taken += own.tolist()
    assert len(set(taken)) == len(taken)
    idle = np.setdiff1d(np.arange(len(blocks)), taken)
    assert (plan.first[idle] > 10**9).all()
