"""How many tokens those in flight will want at once."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.generation import sequence
from ge_text.engine.admission import LengthForecast, PeakLoad


def peak(lengths, one):
    """The peak of sequences (tokens held, tokens to come) in blocks of one token."""
    made = [sequence(prompt=(1,) * held, max_output=left) for held, left in lengths]
    load = PeakLoad(made, LengthForecast(), 1)
    return load.with_one_more(sequence(prompt=(1,) * one[0], max_output=one[1]))


def simulated(lengths):
    """Let all run step by step until each has its tokens; return the most held at once."""
    return max(
        sum(held + step for held, left in lengths if step < left)
        for step in range(max(left for _, left in lengths))
    )


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), max_size=6),
    st.tuples(st.integers(1, 20), st.integers(1, 20)),
)
def test_the_peak_is_what_running_them_would_take(lengths, one):
    """The estimate is exact where every sequence uses up its limit, in blocks of one token."""
    assert peak(lengths, one) == simulated([*lengths, one])


def test_the_peak_is_far_below_the_sum_of_all_maxima():
    """One that ends soon makes room for one that lasts: the sum of maxima would refuse them."""
    assert peak([(90, 2)], (1, 90)) == 93
    assert peak([(90, 2)], (1, 90)) < 90 + 2 + 1 + 90


def test_a_partly_filled_block_counts_whole():
    """A sequence of 3 tokens holds a block of 4."""
    load = PeakLoad([], LengthForecast(), 4)
    assert load.with_one_more(sequence(prompt=(1,) * 3, max_output=1)) >= 4


def test_asking_does_not_add_and_adding_does():
    """Who is refused leaves no trace: a total only grows by who joins."""
    load, one = PeakLoad([], LengthForecast(), 1), sequence(prompt=(1,) * 5, max_output=5)
    assert load.with_one_more(one) == load.with_one_more(one)
    before = load.with_one_more(one)
    load.add(one)
    assert load.with_one_more(one) == 2 * before


def ended(number, *, max_output, limited=False):
    """Return a sequence that ended with so many tokens; without a limit of its own, or with one."""
    limit = max_output if limited else None
    return sequence(prompt=(1,), given=(2,) * number, max_output=max_output, max_tokens=limit)


def learned(*sequences, times=200):
    """Return what is expected once so many like these have ended."""
    forecast = LengthForecast()
    for _ in range(times):
        for one in sequences:
            forecast.observe(one)
    return forecast


def test_a_text_is_not_expected_to_fill_whatever_the_model_holds():
    """At first nobody knows how long texts get; a short limit is taken for what it says."""
    forecast = LengthForecast()
    assert forecast.remaining(sequence(max_output=100_000)) == 512
    assert forecast.remaining(sequence(max_output=100)) == 100


def test_lengths_are_learned():
    """Who stops early makes room for others; whoever has all that he may have gets one still."""
    forecast = learned(ended(10, max_output=100))
    assert forecast.remaining(sequence(max_output=100)) == 10
    assert forecast.remaining(sequence(max_output=4)) == 4
    assert forecast.remaining(ended(100, max_output=100)) == 1


def test_each_class_of_limit_is_learned_by_itself():
    """Completions that use 16 tokens up say nothing of chats without a limit, nor of limits far up."""
    forecast = learned(
        ended(16, max_output=16, limited=True),
        ended(40, max_output=100_000),
        ended(900, max_output=1000, limited=True),
    )
    assert forecast.remaining(ended(0, max_output=16, limited=True)) == 16
    assert forecast.remaining(ended(0, max_output=100_000)) == 40
    assert forecast.remaining(ended(0, max_output=1000, limited=True)) == 900
    assert forecast.remaining(ended(0, max_output=600, limited=True)) == 600
    assert forecast.remaining(ended(0, max_output=4000, limited=True)) == 512


def test_a_text_with_little_room_left_says_little_of_others():
    """A chat that has filled the model's positions does not make long ones short."""
    forecast = learned(ended(500, max_output=100_000))
    forecast.observe(ended(20, max_output=20))
    assert forecast.remaining(ended(0, max_output=100_000)) == 476


@pytest.mark.parametrize(("so_far", "left"), [(9, 1), (10, 10), (19, 1), (25, 15), (90, 10)])
def test_who_outgrows_what_was_expected_is_expected_to_double(so_far, left):
    """It is no closer to its end for being longer than others; its limit it cannot outgrow."""
    forecast = learned(ended(10, max_output=100))
    assert forecast.remaining(ended(so_far, max_output=100)) == left


def test_a_failure_doubles_what_is_expected_of_those_that_caused_it():
    """The others' length was not taken for too short, and nobody's limit is exceeded."""
    short, chat = ended(16, max_output=16, limited=True), ended(40, max_output=100)
    forecast = learned(short, chat)
    forecast.failed([short, chat, ended(0, max_output=300, limited=True)])
    assert forecast.remaining(ended(0, max_output=100)) == 80
    assert forecast.remaining(ended(0, max_output=16, limited=True)) == 16
    assert forecast.remaining(ended(0, max_output=300, limited=True)) == 300
    forecast.failed([chat])
    assert forecast.remaining(ended(0, max_output=100)) == 80, "nobody has outgrown that"
    forecast.failed([ended(90, max_output=100)])
    assert forecast.remaining(ended(0, max_output=10_000)) == 100


def test_one_failure_is_not_remembered_for_long():
    """What is learned from the texts that end afterwards counts as before."""
    forecast = learned(ended(40, max_output=8000))
    forecast.failed([ended(100, max_output=8000)])
    for _ in range(60):
        forecast.observe(ended(40, max_output=8000))
    assert forecast.remaining(ended(0, max_output=8000)) < 45


def holding(blocks, *, left, size=4):
    """Return a sequence that has these full blocks and gets so many tokens still."""
    made = sequence(prompt=(1,) * (size * len(blocks)), max_output=left)
    made.num_computed = made.num_tokens
    made.blocks.extend(blocks)
    return made


def load_of(*sequences, size=4):
    return PeakLoad(sequences, LengthForecast(), size)


def test_a_block_that_several_read_counts_once():
    """Three texts with the same two blocks and one of their own hold five, not nine."""
    three = [holding([1, 2, own], left=1) for own in (3, 4, 5)]
    spare = 3 * len(three)  # the rest of a block for each of them
    assert load_of(*three[:2]).with_one_more(three[2], [1, 2]) == 4 * 5 + spare
    assert load_of(*three[:2]).with_one_more(three[2]) == 4 * 7 + spare


def test_blocks_that_one_alone_has_are_left_out_for_whoever_finds_them():
    """The second to come shares with the first; a third with other blocks counts whole."""
    load = load_of(holding([1, 2, 3], left=1), holding([7, 8], left=1))
    assert load.with_one_more(holding([1, 2], left=1), [1, 2]) == 4 * 5 + 3 * 3
    assert load.with_one_more(holding([9], left=1), [9]) == 4 * 6 + 3 * 3


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("size", [1, 4])
def test_a_shared_block_counts_for_as_long_as_its_last_reader(order, size):
    """Whoever has it ends, the block stays: whether he came first or last, joins or asks."""
    short, long = holding([1, 2, 3], left=2, size=size), holding([1, 2, 4], left=50, size=size)
    spare, shared = size - 1, [1, 2]
    whole = 3 * size + 49 + spare  # the long one alone, just before it ends
    made = [short, long][::order]
    assert load_of(made[0], size=size).with_one_more(made[1], shared) == whole
    load = load_of(*made, size=size)
    other = holding([9], left=1, size=size)
    assert load.with_one_more(other) == max(whole, 5 * size + 2 + 3 * spare)
    later = load_of(size=size)
    later.add(made[0])
    later.add(made[1])
    assert later.with_one_more(other) == load.with_one_more(other)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(1, 4), st.integers(1, 20)),
        min_size=1,
        max_size=6,
    ),
    st.randoms(),
)
def test_the_peak_is_what_running_those_that_share_would_take(drawn, random):
    """The estimate is exact for texts of three families whose beginnings are in the same blocks."""
    fresh = itertools.count(100)
    made = []
    for family, shared, own, left in drawn:
        begins = [10 * family + place for place in range(1, shared + 1)]
        made.append((holding([*begins, *itertools.islice(fresh, own)], left=left, size=1), shared))

    def held(step):
        there = [one for one, _ in made if step < one.max_output]
        return len({block for one in there for block in one.blocks}) + step * len(there)

    random.shuffle(made)
    (last, shared), *others = made
    load = PeakLoad([one for one, _ in others], LengthForecast(), 1)
    last_blocks = last.blocks[:shared]
    assert load.with_one_more(last, last_blocks) == max(held(step) for step in range(20))
    load.add(last)
    assert load.with_one_more(sequence(prompt=(1,), max_output=1)) >= max(map(held, range(20)))
