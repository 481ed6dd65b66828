"""Wishes are checked against vLLM's ranges; random numbers follow from seed and position alone."""

import time
from dataclasses import replace

import numpy as np
import pytest

from ge_backend.errors import InvalidRequest
from ge_text.models.sampling import BadWords, Biases, Sampling, uniform


def test_the_defaults_are_those_of_vllm():
    """A request that says nothing draws from the model's own distribution."""
    plain = Sampling()
    assert (plain.temperature, plain.top_p, plain.top_k, plain.min_p) == (1.0, 1.0, 0, 0.0)
    assert plain.logprobs is None
    assert not plain.greedy


@pytest.mark.parametrize(
    "wish",
    [
        {"temperature": 0.0},
        {"temperature": 2.5},
        {"temperature": 1e20},
        {"top_p": 1.0},
        {"top_k": -1},
        {"top_k": 7},
        {"min_p": 1.0},
        {"repetition_penalty": 1e-20},
        {"repetition_penalty": 1e20},
        {"presence_penalty": -2.0},
        {"frequency_penalty": 2.0},
        {"logprobs": 0},
        {"logprobs": 20},
        {"logit_bias": {3: -100.0}},
        {"bad_words_ids": ((1,), (2, 3))},
        {"seed": -5},
    ],
)
def test_what_vllm_takes_is_taken(wish):
    """The edges of every range belong to it."""
    Sampling(**wish)


@pytest.mark.parametrize(
    "wish",
    [
        {"temperature": -0.1},
        {"temperature": float("inf")},
        {"temperature": 1e21},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"top_k": -2},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": float("inf")},
        {"repetition_penalty": 1e-21},
        {"repetition_penalty": 1e21},
        {"presence_penalty": 2.5},
        {"frequency_penalty": -2.5},
        {"logprobs": -1},
        {"logit_bias": {3: float("nan")}},
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(wish):
    """The message names the setting, what came and what is allowed."""
    with pytest.raises(InvalidRequest, match=rf"{next(iter(wish))}.* is .* has to be"):
        Sampling(**wish)


def test_a_bad_word_without_tokens_is_refused():
    """It would forbid everything or nothing."""
    with pytest.raises(InvalidRequest, match="bad_words"):
        Sampling(bad_words_ids=((),))


@pytest.mark.parametrize(
    ("wish", "named"),
    [
        ({"logit_bias": {10: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"bad_words_ids": ((3, 10),)}, "bad_words"),
    ],
)
def test_tokens_outside_of_the_vocabulary_are_refused(wish, named):
    """An index behind the logits must not reach the device."""
    with pytest.raises(InvalidRequest, match=rf"{named} has token -?\d+; .* 0 to 9"):
        Sampling(**wish).check_vocabulary(10)
    Sampling(logit_bias={9: 1.0}, bad_words_ids=((0, 9),)).check_vocabulary(10)


def test_many_bad_words_are_checked_in_time_that_grows_with_them():
    """Whoever checks keeps all other threads waiting, so 100,000 words take no minutes."""
    asked = Sampling(bad_words_ids=((1, 2, 3),) * 100_000)
    began_s = time.thread_time()
    asked.check_vocabulary(10)
    assert time.thread_time() - began_s < 1


def test_samples_of_a_request_share_what_is_made_of_its_wishes():
    """Arrays of many biases and words take time: once for all samples and steps."""
    one = Sampling(logit_bias={3: -1.5, 4: 2}, bad_words_ids=((1, 2),))
    other = replace(one, seed=9)
    assert other.logit_bias is one.logit_bias
    assert other.bad_words_ids is one.bad_words_ids
    tokens, biases = one.logit_bias.arrays
    assert (tokens.tolist(), biases.tolist()) == ([3, 4], [-1.5, 2.0])
    assert (tokens.dtype, biases.dtype) == (np.int64, np.float32)
    assert other.logit_bias.arrays[0] is tokens
    assert [each.dtype for each in Biases().arrays] == [np.int64, np.float32]


@pytest.mark.parametrize("seed", range(20))
def test_last_tokens_are_those_of_words_that_nearly_stand_at_the_end(seed):
    """Found by looking at each word, at every end of prompt and output."""
    rng = np.random.default_rng(seed)
    words = BadWords.of(tuple(rng.integers(0, 3, rng.integers(1, 5)).tolist()) for _ in range(12))
    for known in (rng.integers(0, 3, length) for length in range(7)):
        for split in range(len(known) + 1):
            text = known.tolist()
            found = words.last_tokens(known[:split], known[split:])
            assert sorted(found) == sorted(
                last for *others, last in words if text[len(text) - len(others) :] == others
            )


def test_many_bad_words_take_little_time_before_a_token():
    """Words that the whole text is made of are looked up, not compared one by one."""
    words = BadWords.of((1,) * (1 + number % 64) + (number,) for number in range(2048))
    prompt, output = np.ones(500, np.int64), np.ones(0, np.int64)
    assert sorted(words.last_tokens(prompt, output)) == list(range(2048))
    begun_s = time.thread_time()
    for _ in range(100):
        words.last_tokens(np.zeros(500, np.int64), output)
    assert time.thread_time() - begun_s < 0.1


def test_only_a_vanishing_temperature_is_greedy():
    """Below it a division would overflow."""
    assert Sampling(temperature=0.0).greedy
    assert Sampling(temperature=1e-6).greedy
    assert not Sampling(temperature=1e-4).greedy


def test_a_random_number_is_the_same_alone_and_in_any_company():
    """It is a function of (seed, position), so a batch cannot change it."""
    seeds, positions = np.array([7, -3, 7, 2**62]), np.array([0, 5, 9, 1000])
    together = uniform(seeds, positions)
    alone = [uniform(seeds[i : i + 1], positions[i : i + 1])[0] for i in range(4)]
    assert together.tolist() == alone
    assert uniform(seeds[::-1], positions[::-1]).tolist() == alone[::-1]


def test_the_numbers_never_change_between_versions():
    """A restarted server goes on with the very numbers it would have drawn."""
    numbers = uniform(np.array([0, 1, 42]), np.array([0, 1, 10**6])).tolist()
    assert numbers == [0.883310808101669, 0.37239342276006937, 0.9794742008671165]


@pytest.mark.parametrize("axis", ["seeds", "positions"])
def test_the_numbers_are_uniform_and_independent(axis):
    """Chi-square over pairs of neighbours along each argument, 16 x 16 cells."""
    count = 40_000
    steps, same = np.arange(count), np.full(count, 5)
    numbers = uniform(steps, same) if axis == "seeds" else uniform(same, steps)
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    cells = (numbers[:-1:2] * 16).astype(int) * 16 + (numbers[1::2] * 16).astype(int)
    expected = len(cells) / 256
    chi = (((np.bincount(cells, minlength=256) - expected) ** 2) / expected).sum()
    assert abs(chi - 255) < 5 * (2 * 255) ** 0.5
