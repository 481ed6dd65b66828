"""Reference counts and labels of a cache's blocks, against a plain oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.integrity import block_defects
from ge_backend.errors import OutOfMemory, ProtocolError
from ge_text.engine.blocks import BlockPool
from ge_text.engine.sequence import BlockContent


def test_block_0_is_nobodys():
    """Padding writes to block 0, so no sequence ever gets it."""
    pool = BlockPool(4, 16)
    assert sorted(pool.allocate(3)) == [1, 2, 3]
    assert (pool.capacity, pool.num_free, pool.num_used) == (3, 0, 3)


def test_tokens_are_counted_in_whole_blocks():
    """A block is taken per `block_size` tokens, not per token."""
    pool = BlockPool(4, 16)
    assert [pool.blocks_for(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_too_many_are_refused_and_none_is_taken():
    """Asking for more than are free changes nothing."""
    pool = BlockPool(4, 16)
    pool.allocate(1)
    with pytest.raises(OutOfMemory, match="3 blocks of the cache were asked for, 2 of 3 are free"):
        pool.allocate(3)
    assert pool.num_free == 2


def test_a_shared_block_is_free_when_its_last_owner_lets_go():
    """A block lives as long as somebody names it."""
    pool = BlockPool(3, 16)
    blocks = pool.allocate(2)
    pool.share(blocks[:1])
    pool.release(blocks)
    assert (pool.num_free, pool.references(blocks[0]), pool.references(blocks[1])) == (1, 1, 0)
    pool.release(blocks[:1])
    assert pool.num_free == 2
    assert block_defects(pool, []) == []


@pytest.mark.parametrize("blocks", [[0], [2], [9], [-1], [1, 2], [1, 1]])
@pytest.mark.parametrize("verb", ["share", "release"])
def test_what_is_nobodys_cannot_be_given_up(verb, blocks):
    """Freeing an unknown block, or one twice, would give it two owners; it changes nothing."""
    pool = BlockPool(4, 16)
    assert pool.allocate(1) == [1]
    with pytest.raises(ProtocolError):
        getattr(pool, verb)(blocks)
    assert block_defects(pool, [[1]]) == []


def test_a_cache_without_a_block_to_use_is_refused():
    """One block is for padding."""
    with pytest.raises(OutOfMemory, match="the cache has 1 blocks; expected at least 2"):
        BlockPool(1, 16)


def test_integrity_names_both_numbers():
    """A miscount says what was counted and what was found."""
    pool = BlockPool(4, 16)
    pool.allocate(2)
    assert block_defects(pool, [[1, 2]]) == []
    assert block_defects(pool, [[1, 2], [2]]) == ["block 2 has 1 references and is named 2 times"]
    assert block_defects(pool, [[1]]) == ["block 2 has 1 references and is named 0 times"]
    pool._free.append(2)
    assert "2 blocks used and 2 free are not 3" in block_defects(pool, [[1, 2]])
    pool._free.append(2)
    assert any("have a block twice" in problem for problem in block_defects(pool, [[1, 2]]))


def content(name):
    return BlockContent(b"", str(name).encode())


def test_a_labelled_block_is_found_until_its_room_is_needed():
    """Nobody's blocks with a label are free, and found; whoever shares one has it again."""
    pool = BlockPool(4, 16)
    one, two = pool.allocate(2)
    pool.label(one, content(1))
    pool.release([one, two])
    assert (pool.num_free, pool.num_kept, pool.find(content(1))) == (3, 1, one)
    pool.share([one])
    assert (pool.num_free, pool.num_kept, pool.references(one)) == (2, 0, 1)
    assert one not in pool.allocate(2)
    pool.release([one])
    assert pool.allocate(1) == [one]
    assert (pool.find(content(1)), pool.evicted) == (None, 1)


def test_the_longest_unused_goes_first_and_of_a_table_its_end():
    """A beginning outlives what follows it, and what was used lately what was not."""
    pool = BlockPool(5, 16)
    table = pool.allocate(4)
    for block in table:
        pool.label(block, content(block))
    pool.release(table[3:])
    pool.release(table[:3])
    pool.share(table[:1])
    pool.release(table[:1])
    assert [pool.allocate(1)[0] for _ in table] == [table[3], table[2], table[1], table[0]]


def test_equal_contents_are_found_in_one_block():
    """The first one stays; the other is as free as any when it is let go."""
    pool = BlockPool(4, 16)
    one, two = pool.allocate(2)
    pool.label(one, content(1))
    pool.label(two, content(1))
    pool.release([one, two])
    assert (pool.find(content(1)), pool.num_kept) == (one, 1)
    assert block_defects(pool, []) == []


def test_a_block_without_its_label_is_not_found_nor_kept():
    """What is not to be relied upon is for nobody else."""
    pool = BlockPool(4, 16)
    blocks = pool.allocate(2)
    pool.label(blocks[0], content(1))
    pool.unlabel(blocks)
    assert pool.find(content(1)) is None
    pool.release(blocks)
    assert (pool.num_kept, block_defects(pool, [])) == (0, [])


def test_a_block_that_may_hold_no_numbers_says_so_to_its_next_owner():
    """If its last one was not proven; kept or not, and once."""
    pool = BlockPool(5, 16)
    one, two, three, four = pool.allocate(4)
    pool.label(two, content("a"))
    pool.share([three])
    pool.release([three], proven=False)
    pool.release([one, two], proven=False)
    pool.release([three, four])
    again = pool.allocate(4)
    assert sorted(pool.take_uninitialised(again)) == [one, two]
    assert pool.take_uninitialised(again) == []


def test_integrity_sees_kept_blocks_that_are_somebodys():
    """A kept block has no owner, and what is found has its label."""
    pool = BlockPool(4, 16)
    (block,) = pool.allocate(1)
    pool.label(block, content(1))
    pool._kept[block] = None
    assert any("is kept, has 1 references" in problem for problem in block_defects(pool, [[block]]))
    pool._kept.clear()
    pool._by_content.clear()
    assert block_defects(pool, [[block]]) == ["1 blocks have labels and 0 are found"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["allocate", "share", "release", "label", "unlabel", "find"]),
            st.integers(0, 9),
        )
    )
)
def test_references_agree_with_an_oracle(actions):
    """Whatever is asked, free, kept and used blocks are all blocks and nobody gets another's."""
    pool, tables, holds = BlockPool(6, 4), [], {}
    for verb, number in actions:
        if verb == "allocate" and number <= pool.num_free:
            blocks = pool.allocate(number)
            assert not {*blocks} & {block for table in tables for block in table}
            tables.append(blocks)
            holds = {block: name for block, name in holds.items() if block not in blocks}
        elif verb == "find" and (found := pool.find(content(number))) is not None:
            assert holds[found] == number
            pool.share([found])
            tables.append([found])
        elif tables and verb == "share":
            pool.share(tables[number % len(tables)])
            tables.append(list(tables[number % len(tables)]))
        elif tables and verb == "release":
            pool.release(tables.pop(number % len(tables)))
        elif tables and verb == "unlabel":
            pool.unlabel(tables[number % len(tables)])
        elif tables and verb == "label":
            for block in {*tables[number % len(tables)][:1]} - pool._labels.keys():
                pool.label(block, content(number))
                holds[block] = number
        used = {block for table in tables for block in table}
        assert block_defects(pool, tables) == []
        assert pool.num_used == len(used)
        assert not used & pool._kept.keys()
        assert len(pool._free) + pool.num_kept + pool.num_used == pool.capacity
