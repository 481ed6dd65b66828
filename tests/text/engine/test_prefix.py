"""What others have computed of a text's beginning is found, and nothing else."""

import pytest

from builders.generation import sequence
from ge_text.engine.blocks import BlockPool, PrefixCache

SIZE = 4
TEXT = tuple(range(10, 24))


def cache():
    pool = BlockPool(20, SIZE)
    return pool, PrefixCache(pool)


def computed(pool, prefixes, tokens=None, **given):
    """Return a sequence of which so many tokens are computed and noted."""
    made = sequence(**{"prompt": TEXT, **given})
    made.num_computed = made.num_tokens if tokens is None else tokens
    made.blocks.extend(pool.allocate(pool.blocks_for(made.num_computed)))
    prefixes.note(made)
    return made


def found(prefixes, **given):
    return prefixes.find(sequence(**{"prompt": TEXT, **given}))


def test_the_same_beginning_is_found_in_full_blocks():
    """As far as texts are equal, in whole blocks; kept ones as well as somebody's."""
    pool, prefixes = cache()
    blocks = list(computed(pool, prefixes).blocks)
    for _ in ("somebody's", "kept"):
        assert found(prefixes) == blocks[:3]
        assert found(prefixes, prompt=(*TEXT[:9], 1, 2, 3, 4, 5)) == blocks[:2]
        assert found(prefixes, prompt=(1, *TEXT[1:])) == []
        if pool.references(blocks[0]):
            pool.release(blocks)


def test_the_last_token_is_never_found():
    """It has to be computed for the next one to be drawn, even where its block is full."""
    pool, prefixes = cache()
    first = computed(pool, prefixes, prompt=TEXT[:8])
    assert found(prefixes, prompt=TEXT[:8]) == list(first.blocks[:1])
    assert found(prefixes, prompt=TEXT[:9]) == list(first.blocks)


def test_a_block_counts_with_all_that_is_before_it():
    """The same tokens behind another beginning, or at another place, are other keys."""
    pool, prefixes = cache()
    computed(pool, prefixes, prompt=(1, 2, 3, 4, *TEXT[:8]))
    assert found(prefixes) == []
    assert found(prefixes, prompt=(1, 2, 3, 5, *TEXT)) == []


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (3, 0), (4, 1), (11, 2), (14, 3)])
def test_only_full_and_computed_blocks_are_found(tokens, blocks):
    """What is being computed or known only is not in the cache yet."""
    pool, prefixes = cache()
    first = computed(pool, prefixes, tokens)
    assert found(prefixes) == list(first.blocks[:blocks])


def test_tokens_that_are_not_certain_are_never_found():
    """Keys may be written for tokens that a draft proposed; only known tokens count."""
    pool, prefixes = cache()
    made = sequence(prompt=TEXT[:6])
    made.num_computed = 12
    made.blocks.extend(pool.allocate(3))
    prefixes.note(made)
    assert found(prefixes) == list(made.blocks[:1])


def test_output_is_found_as_well():
    """The next question of a conversation begins with the answer to the last one."""
    pool, prefixes = cache()
    made = computed(pool, prefixes, prompt=TEXT[:6])
    for token in TEXT[6:12]:
        made.append(token)
    made.num_computed = 11
    made.blocks.extend(pool.allocate(1))
    prefixes.note(made)
    assert found(prefixes) == list(made.blocks[:2])


@pytest.mark.parametrize("name", ["cache_salt", "adapter"])
def test_who_does_not_know_the_salt_finds_nothing(name):
    """A salt, or another adapter, is another cache; each finds its own."""
    pool, prefixes = cache()

    def made(value):
        one = sequence(prompt=TEXT, **({name: value} if name == "cache_salt" else {}))
        one.adapter = value if name == "adapter" else ""
        return one

    first = made("a")
    first.num_computed = 14
    first.blocks.extend(pool.allocate(4))
    prefixes.note(first)
    assert prefixes.find(made("a")) == list(first.blocks[:3])
    assert prefixes.find(made("b")) == prefixes.find(made("")) == []


def test_a_salt_and_an_adapter_are_told_apart():
    """No salt can pose as an adapter, nor a text as a salt."""
    pool, prefixes = cache()
    one = sequence(prompt=TEXT)
    one.adapter = 'a", "b'
    one.num_computed = 14
    one.blocks.extend(pool.allocate(4))
    prefixes.note(one)
    other = sequence(prompt=TEXT, cache_salt="b")
    other.adapter = "a"
    assert prefixes.find(other) == []


def test_a_request_may_keep_out_of_it():
    """Without it nothing is found, nothing left there, and nothing counted."""
    pool, prefixes = cache()
    computed(pool, prefixes, prefix_cache=False)
    assert found(prefixes) == []
    computed(pool, prefixes)
    alone = sequence(prompt=TEXT, prefix_cache=False)
    assert prefixes.find(alone) == []
    prefixes.count(alone, 0)
    assert (prefixes.asked, prefixes.found) == (0, 0)


def test_what_is_being_computed_is_known_to_come():
    """Only the very next content of somebody who runs, and only where all of it is known."""
    pool, prefixes = cache()
    first = computed(pool, prefixes, 5)
    other = sequence(prompt=TEXT)
    assert prefixes.coming([first]) == {prefixes.wanted(other, 1)}
    assert not prefixes.coming([first]) & {prefixes.wanted(other, 0), prefixes.wanted(other, 2)}
    assert prefixes.wanted(sequence(prompt=TEXT[:8]), 1) is None
    first.num_computed = 12
    assert prefixes.coming([first]) == set()
    assert prefixes.wanted(sequence(prompt=(*TEXT, 1, 2, 3)), 3) is not None


def test_what_was_found_is_counted_in_tokens():
    """Of those that were asked about."""
    _, prefixes = cache()
    prefixes.count(sequence(prompt=TEXT), 12)
    prefixes.count(sequence(prompt=TEXT), 0)
    assert (prefixes.asked, prefixes.found) == (28, 12)
