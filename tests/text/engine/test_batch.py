"""The flat arrays of a step."""

import numpy as np

from builders.generation import sequence
from ge_text.engine.batch import build_batch
from ge_text.engine.groups import GroupPlan, free_groups
from ge_text.engine.plan import Span

BLOCK = 4


def placed(blocks, start, count, tokens):
    made = sequence(prompt=tokens)
    made.blocks.extend(blocks)
    return Span(made, start, count)


def test_tokens_lie_where_their_blocks_are():
    """Slots follow the block table, positions the sequence, and groups each other."""
    decode = placed([7, 3], 5, 1, (10, 11, 12, 13, 14, 15))
    chunk = placed([2, 9], 2, 4, (20, 21, 22, 23, 24, 25, 26))
    built = build_batch(free_groups([chunk, decode], BLOCK), BLOCK)
    batch = built.batch
    np.testing.assert_array_equal(batch.ids, [15, 22, 23, 24, 25])
    np.testing.assert_array_equal(batch.positions, [5, 2, 3, 4, 5])
    np.testing.assert_array_equal(batch.slots, [3 * 4 + 1, 2 * 4 + 2, 2 * 4 + 3, 9 * 4, 9 * 4 + 1])
    assert [(group.rows, group.query) for group in batch.groups] == [(1, 1), (1, 4)]
    np.testing.assert_array_equal(batch.groups[0].tables, [[7, 3]])
    np.testing.assert_array_equal(batch.groups[1].lengths, [6])


def test_only_who_has_caught_up_draws_a_token():
    """A chunk in the middle of a prompt draws nothing; its last chunk draws from its last token."""
    middle = placed([2, 9], 2, 4, (20, 21, 22, 23, 24, 25, 26))
    last = placed([5, 6], 4, 3, (30, 31, 32, 33, 34, 35, 36))
    built = build_batch(free_groups([middle, last], BLOCK), BLOCK)
    assert built.drawn == (last,)
    np.testing.assert_array_equal(built.batch.sampled, [6])
    assert built.batch.ids[6] == 36
    assert built.batch.rows[0].position == 7


def test_drafts_stand_behind_the_known_tokens_and_each_draws_one_more():
    """Every place of a run is drawn as if the drafts before it were the text."""
    span = placed([7, 3], 5, 1, (10, 11, 12, 13, 14, 15)).with_drafts((8, 9))
    other = placed([2], 2, 1, (20, 21, 22))
    built = build_batch(free_groups([span, other], BLOCK), BLOCK)
    batch = built.batch
    np.testing.assert_array_equal(batch.ids, [15, 8, 9, 22])
    np.testing.assert_array_equal(batch.positions, [5, 6, 7, 2])
    np.testing.assert_array_equal(batch.slots, [3 * 4 + 1, 3 * 4 + 2, 3 * 4 + 3, 2 * 4 + 2])
    np.testing.assert_array_equal(batch.sampled, [0, 1, 2, 3])
    assert built.drawn == (span, other)
    assert [row.position for row in batch.rows] == [6, 7, 8, 3]
    assert [row.output.tolist() for row in batch.rows] == [[], [8], [8, 9], []]
    assert batch.groups[0].lengths.tolist() == [8]


def test_padding_points_at_nobodys_block():
    """Rows and tokens of padding have position 0, a slot of block 0 and no length."""
    span = placed([2], 0, 3, (20, 21, 22))
    built = build_batch([GroupPlan((span,), (2, 4, 2))], BLOCK)
    batch = built.batch
    np.testing.assert_array_equal(batch.ids, [20, 21, 22, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(batch.positions, [0, 1, 2, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(batch.slots, [8, 9, 10, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(batch.groups[0].tables, [[2, 0], [0, 0]])
    np.testing.assert_array_equal(batch.groups[0].lengths, [3, 0])
    np.testing.assert_array_equal(batch.sampled, [2])


def test_blocks_beyond_the_shape_are_left_out():
    """A sequence may have more blocks than the tokens of this step need."""
    span = placed([2, 5, 6], 0, 3, (20, 21, 22))
    batch = build_batch([GroupPlan((span,), (1, 3, 1))], BLOCK).batch
    np.testing.assert_array_equal(batch.groups[0].tables, [[2]])
