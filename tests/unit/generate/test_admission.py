"""How many tokens those in flight will want at once."""

from hypothesis import given
from hypothesis import strategies as st

from builders.generation import sequence
from ge_backend.generate.admission import LengthForecast, PeakLoad


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


def test_lengths_are_learned_and_a_failure_is_remembered():
    """Who stops early makes room for others; when somebody had to leave, caution returns."""
    forecast, fresh = LengthForecast(), sequence(prompt=(1,), max_output=100)
    assert forecast.remaining(fresh) == 100
    ended = sequence(prompt=(1,), given=(2,) * 9, max_output=100)
    ended.append(3)
    for _ in range(200):
        forecast.observe(ended)
    assert forecast.remaining(fresh) in (10, 11)
    assert forecast.remaining(ended) == 1
    forecast.failed()
    assert forecast.remaining(fresh) == 100
