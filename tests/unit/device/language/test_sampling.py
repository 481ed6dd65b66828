"""Wishes are checked against vLLM's ranges; random numbers follow from seed and position alone."""

import time

import numpy as np
import pytest

from ge_backend.device.language.sampling import Sampling, uniform
from ge_backend.errors import InvalidRequest


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
