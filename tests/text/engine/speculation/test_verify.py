"""A draft is right if it is what the model draws in its place, and nothing else changes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ge_text.engine.speculation.verify import num_right
from ge_text.models.batch import SampleRow
from ge_text.models.sampling import Sampling, uniform
from ge_text.torch.sampler import draw

VOCABULARY, DRAFTS, RUNS, JUDGED = 5, 3, 20_000, 3
TOKENS = st.lists(st.integers(0, 2), max_size=8)


@given(TOKENS, TOKENS)
def test_right_are_those_before_the_first_wrong_one(drafts, drawn):
    """Each right one is what was drawn; the next, if it was tested, is not."""
    drawn = drawn + [3] * (len(drafts) + 1 - len(drawn))
    number = num_right(drafts, drawn)
    assert drafts[:number] == drawn[:number]
    assert number == len(drafts) or drafts[number] != drawn[number]


@pytest.fixture(scope="module")
def chains():
    """Scores of each token behind each: the model's, and those of somebody who guesses."""
    generator = torch.Generator().manual_seed(3)
    model = torch.randn(VOCABULARY, VOCABULARY, generator=generator)
    return model, model + 0.8 * torch.randn(VOCABULARY, VOCABULARY, generator=generator)


def drawn_from(scores, last, places, seeds, heat=1.0):
    """Return a token behind each of `last`, as the sampler draws it at these places."""
    sums = torch.softmax(scores / heat, -1).cumsum(-1, dtype=torch.float64)[last]
    numbers = torch.from_numpy(uniform(seeds, places)).unsqueeze(1) * sums[:, -1:]
    found = torch.searchsorted(sums, numbers, right=True).squeeze(1)
    return found.clamp(max=VOCABULARY - 1).numpy()


def test_the_tokens_of_this_test_are_the_samplers(chains):
    """What is shown here of distributions holds of the real sampler."""
    nothing, seeds = np.zeros(0, np.int64), np.arange(300) - 150
    last, places = seeds % VOCABULARY, np.arange(300) % 7
    rows = [
        SampleRow(
            sampling=Sampling(seed=int(seed), temperature=0.7),
            position=int(place),
            prompt=nothing,
            output=nothing,
        )
        for seed, place in zip(seeds, places, strict=True)
    ]
    real = draw(chains[0][torch.from_numpy(last)], rows).tokens
    assert (drawn_from(chains[0], last, places, seeds, 0.7) == real).all()


def runs(chains, *, same_numbers, wrong=None, heat=1.0):
    """Return the first tokens [RUNS, JUDGED] of texts behind a token 0, written with drafts."""
    model, guesser = chains
    seeds = np.arange(RUNS) * 7919 + 1
    others = seeds if same_numbers else seeds + 10**9
    made, lengths = np.zeros((RUNS, 1 + JUDGED + DRAFTS), np.int64), np.ones(RUNS, np.int64)
    for _ in range(JUDGED):
        places = np.minimum(lengths, JUDGED)  # who is done draws his last tokens again
        before = [made[np.arange(RUNS), places - 1]]
        for step in range(DRAFTS):
            before.append(drawn_from(guesser, before[-1], places + step, others, heat))
        judges = [before[0], *before[:-1]] if wrong == "late" else before
        drawn, again = (
            np.stack(
                [drawn_from(model, one, places + n, with_, heat) for n, one in enumerate(judges)], 1
            )
            for with_ in (seeds, seeds + 5 * 10**9)
        )
        drafts = np.stack(before[1:], 1)
        for run, place in enumerate(places.tolist()):
            right = num_right(drafts[run].tolist(), drawn[run].tolist())
            made[run, place : place + right + 1] = drawn[run, : right + 1]
            if wrong == "again" and right < DRAFTS:
                made[run, place + right] = again[run, right]
            lengths[run] = place + right + 1
    return made[:, 1 : 1 + JUDGED]


def strangeness(chains, tokens, heat=1.0):
    """Return chi-square of tokens against the exact joint distribution, in standard deviations."""
    each = torch.softmax(chains[0].double() / heat, -1).numpy()
    exact = np.zeros((VOCABULARY,) * JUDGED)
    for one, two, three in np.ndindex(exact.shape):
        exact[one, two, three] = each[0, one] * each[one, two] * each[two, three]
    seen = np.zeros_like(exact)
    np.add.at(seen, tuple(tokens.T), 1)
    chi = ((seen - exact * RUNS) ** 2 / (exact * RUNS)).sum()
    free = exact.size - 1
    return (chi - free) / math.sqrt(2 * free)


@pytest.mark.parametrize("same_numbers", [False, True])
@pytest.mark.parametrize("heat", [1.0, 0.7])
def test_texts_are_distributed_as_without_drafts(chains, same_numbers, heat):
    """Whether guesses are independent of the numbers that tokens are drawn with, or share them."""
    tokens = runs(chains, same_numbers=same_numbers, heat=heat)
    assert abs(strangeness(chains, tokens, heat)) < 4


@pytest.mark.parametrize("wrong", ["again", "late"])
def test_the_usual_mistakes_would_show(chains, wrong):
    """Drawing anew where a draft was wrong, and judging drafts by the scores one place before."""
    assert strangeness(chains, runs(chains, same_numbers=False, wrong=wrong)) > 20


def test_no_guess_changes_a_token(chains):
    """More than equal distributions: the very same tokens, and so with whatever guesses."""
    first = runs(chains, same_numbers=False)
    assert (first == runs(chains, same_numbers=True)).all()
