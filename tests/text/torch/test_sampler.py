"""Tokens are drawn from the distribution that transformers' warpers describe, row by row."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ge_backend.errors import GraphFailed, InvalidRequest
from ge_text.models.batch import SampleRow
from ge_text.models.sampling import FACTORS, GREEDY_BELOW, Sampling
from ge_text.torch import sampler
from ge_text.torch.sampler import distribution, draw

NONE = np.zeros(0, np.int64)
WISHES = [
    Sampling(),
    Sampling(temperature=0.3),
    Sampling(top_k=1),
    Sampling(top_k=7, temperature=1.7),
    Sampling(top_k=5000),
    Sampling(top_p=0.01),
    Sampling(top_p=0.5, temperature=2.0),
    Sampling(top_p=0.999),
    Sampling(min_p=0.2),
    Sampling(min_p=1.0),
    Sampling(min_p=0.01, top_k=20, top_p=0.8, temperature=1.3),
]


def row(sampling=None, position=0, prompt=NONE, output=NONE, forbidden=()):
    return SampleRow(
        sampling=sampling or Sampling(),
        position=position,
        prompt=np.asarray(prompt, np.int64),
        output=np.asarray(output, np.int64),
        forbidden=forbidden,
    )


def scores(count, width=3000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator) * 3


def warped(scores, wish):
    """Return transformers' distribution, in vLLM's order of the same wishes."""
    steps = LogitsProcessorList([TemperatureLogitsWarper(wish.temperature)])
    if wish.min_p:
        steps.append(MinPLogitsWarper(wish.min_p))
    if wish.top_k:
        steps.append(TopKLogitsWarper(wish.top_k))
    if wish.top_p < 1:
        steps.append(TopPLogitsWarper(wish.top_p))
    return torch.softmax(steps(None, scores), -1)


@pytest.mark.parametrize("candidates", [(1024,), (16,), (4, 16)])
def test_the_distribution_is_that_of_transformers_warpers(monkeypatch, candidates):
    """All rows at once, each with its own wishes; also where few candidates do not suffice."""
    monkeypatch.setattr(sampler, "CANDIDATES", candidates)
    given = scores(len(WISHES))
    found = distribution(given, [row(wish) for wish in WISHES])
    for index, wish in enumerate(WISHES):
        expected = warped(given[index : index + 1].clone(), wish)[0]
        assert torch.equal(found[index] > 0, expected > 0), wish
        torch.testing.assert_close(found[index], expected, rtol=1e-4, atol=1e-7)


def test_a_row_gets_the_same_distribution_and_token_in_any_company():
    """To the last bit: no neighbour's wish changes how a row is computed."""
    given = scores(len(WISHES))
    rows = [row(wish, position=index) for index, wish in enumerate(WISHES)]
    together = distribution(given, rows)
    tokens = draw(given, rows).tokens
    for order in (range(len(rows)), reversed(range(len(rows)))):
        for index in order:
            alone = given[index : index + 1]
            assert torch.equal(distribution(alone, [rows[index]])[0], together[index])
            assert draw(alone, [rows[index]]).tokens[0] == tokens[index]
    some = [8, 0, 3]
    assert draw(given[some], [rows[index] for index in some]).tokens.tolist() == [
        tokens[index] for index in some
    ]


@pytest.mark.parametrize(
    "wish", [Sampling(), Sampling(top_k=4), Sampling(top_p=0.9, min_p=0.02, temperature=3)]
)
def test_tokens_come_as_often_as_the_distribution_says(wish):
    """Chi-square over many positions of one seed; a bound that a fair draw passes surely."""
    count, width = 20_000, 12
    given = scores(1, width, seed=4)
    expected = distribution(given, [row(wish)])[0].double().numpy() * count
    rows = [row(wish, position=position) for position in range(count)]
    drawn = np.bincount(draw(given.expand(count, -1), rows).tokens, minlength=width)
    possible = expected > 0
    assert drawn[~possible].sum() == 0
    chi = ((drawn - expected)[possible] ** 2 / expected[possible]).sum()
    freedom = possible.sum() - 1
    assert freedom > 2
    assert chi < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "wish",
    [
        {"temperature": FACTORS[1]},
        {"repetition_penalty": FACTORS[0], "temperature": GREEDY_BELOW},
        {"repetition_penalty": FACTORS[1], "temperature": GREEDY_BELOW},
    ],
)
def test_the_edges_of_the_ranges_draw_what_is_allowed(wish):
    """Scores stay numbers there: else the last token would be drawn, forbidden or not."""
    given, forbidden = scores(1, 50), (7, 49)
    rows = [
        row(Sampling(seed=seed, **wish), prompt=range(50), forbidden=forbidden)
        for seed in range(300)
    ]
    drawn = draw(given.expand(300, -1), rows)
    assert not drawn.failed
    assert not set(drawn.tokens.tolist()) & set(forbidden)


def test_the_random_number_follows_from_seed_and_position_alone():
    """Another seed or position is another draw; the same ones are the same draw."""
    given = torch.zeros(1, 1000)

    def token(seed, position):
        return draw(given, [row(Sampling(seed=seed), position)]).tokens[0]

    assert token(1, 5) == token(1, 5)
    assert len({token(1, position) for position in range(50)}) > 40
    assert len({token(seed, 5) for seed in range(50)}) > 40


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_greedy_row_takes_the_lowest_of_the_best_tokens(dtype):
    """Ties are common in bfloat16, and have to fall the same way everywhere."""
    given = torch.zeros(3, 500, dtype=dtype)
    given[0, [400, 77, 499]] = 2.0
    given[1] = -1.0
    given[2, 499] = 0.5
    rows = [row(Sampling(temperature=0.0))] * 3
    assert draw(given, rows).tokens.tolist() == [77, 0, 499]


def test_greedy_and_random_rows_share_a_step():
    """Each row is drawn as it wishes."""
    given = scores(4, 50)
    greedy = Sampling(temperature=0.0)
    tokens = draw(given, [row(greedy), row(Sampling(top_k=1)), row(), row(greedy)]).tokens
    best = given.argmax(-1).tolist()
    assert [tokens[0], tokens[1], tokens[3]] == [best[0], best[1], best[3]]


def test_scores_are_left_as_they_are():
    """They belong to the model, which may reuse their memory."""
    given = scores(2, 40)
    before = given.clone()
    draw(given, [row(Sampling(logit_bias={3: 5.0}, top_k=3)), row(forbidden=(1, 2))])
    assert torch.equal(given, before)


def test_log_probabilities_are_of_the_models_own_scores():
    """Whatever was wished, and only for rows that ask; best first, lowest id of equals first."""
    given = scores(3, 60)
    given[1, [9, 5]] = 50.0
    rows = [
        row(Sampling(temperature=0.1, top_k=1, logprobs=0, logit_bias={7: 100.0})),
        row(Sampling(temperature=0.0, logprobs=3)),
        row(),
    ]
    drawn = draw(given, rows)
    expected = torch.log_softmax(given, -1)
    assert drawn.tokens[0] == 7
    assert drawn.logprobs[0] == pytest.approx(float(expected[0, 7]))
    assert np.isnan(drawn.logprobs[2])
    assert drawn.top[0] is None
    assert drawn.top[2] is None
    ids, values = drawn.top[1]
    assert ids[:2].tolist() == [5, 9]
    assert values == pytest.approx(expected[1][ids].numpy())
    assert drawn.ranks.tolist() == [1 + int((expected[0] > expected[0, 7]).sum()), 1, 0]


def test_ranks_of_equals_follow_their_ids():
    """So no two tokens share one, and the ranks of the best agree with their order."""
    given = scores(2, 60)
    given[:, [9, 5]] = 50.0
    chosen = [Sampling(temperature=0.0, logprobs=2, logit_bias={token: 9.0}) for token in (5, 9)]
    drawn = draw(given, [row(sampling) for sampling in chosen])
    assert (drawn.tokens.tolist(), drawn.ranks.tolist()) == ([5, 9], [1, 2])


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize(
    ("bad", "shown"), [(float("nan"), "nan"), (float("inf"), "inf"), (float("-inf"), "-inf")]
)
def test_a_row_whose_scores_are_no_numbers_fails_alone(greedy, bad, shown):
    """Its neighbours have their tokens; one bad number among many is enough, but for -inf."""
    given = scores(3, 40)
    expected = draw(given, [row()] * 3).tokens
    if shown == "-inf":
        given[1] = bad
    else:
        given[1, 17] = bad
    wish = Sampling(temperature=0.0) if greedy else Sampling()
    drawn = draw(given, [row(), row(wish, position=9), row()])
    assert set(drawn.failed) == {1}
    assert isinstance(drawn.failed[1], GraphFailed)
    assert f"position 9 is {shown}" in str(drawn.failed[1])
    assert (drawn.tokens[0], drawn.tokens[2]) == (expected[0], expected[2])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_forbids_all_that_its_form_allows_is_the_requests_own_fault(temperature):
    """A choice of which every text is a bad word; the next row is drawn."""
    given = scores(2, 30)
    wish = Sampling(temperature=temperature, bad_words_ids=((4,), (5,)))
    chosen = np.packbits(np.isin(np.arange(30), (4, 5)), bitorder="little")
    drawn = draw(given, [replace(row(wish, position=9), allowed=lambda: chosen), row(wish)])
    assert set(drawn.failed) == {0}
    assert isinstance(drawn.failed[0], InvalidRequest)
    assert "forbids every token at position 9" in str(drawn.failed[0])


def test_a_step_without_rows_draws_nothing():
    """A chunk in the middle of a prompt is such a step."""
    drawn = draw(torch.zeros(0, 30), [])
    assert (len(drawn.tokens), len(drawn.logprobs), drawn.top) == (0, 0, ())


def test_another_kind_of_device_finds_the_same_best_tokens(monkeypatch):
    """Where numpy cannot look into the memory, torch finds the lowest of the best itself."""
    given = scores(4, 50)
    given[1, [30, 20]] = 99.0
    given[2, 10] = float("nan")
    tokens, highest = sampler._best(given)

    class Elsewhere(torch.Tensor):
        device = type("Device", (), {"type": "elsewhere", "__str__": lambda _: "cpu"})()

    monkeypatch.setattr(torch, "arange", lambda count, device: torch.ones(count).cumsum(0) - 1)
    found, top = sampler._best(given.as_subclass(Elsewhere))
    sound = [0, 1, 3]
    assert found[sound].tolist() == tokens[sound].tolist()
    assert np.array_equal(top, highest, equal_nan=True)
