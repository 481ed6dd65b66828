"""Scores change as transformers' processors and vLLM's formulas say, and only where asked."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from ge_text.models.batch import SampleRow
from ge_text.models.sampling import Sampling
from ge_text.torch.penalties import adjusted

WIDTH = 40


def row(wish=(), prompt=(), output=(), forbidden=()):
    return SampleRow(
        sampling=Sampling(**dict(wish)),
        position=len(prompt) + len(output),
        prompt=np.array(prompt, np.int64),
        output=np.array(output, np.int64),
        forbidden=forbidden,
    )


@pytest.fixture
def scores():
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))


def ids(*known):
    return torch.tensor([list(known)])


def test_nothing_is_copied_where_nothing_changes(scores):
    """The common case costs nothing."""
    assert adjusted(scores, [row()] * 3) is scores


def test_the_repetition_penalty_is_that_of_transformers(scores):
    """Over prompt and output, each token once; other rows stay as they are."""
    found = adjusted(scores, [row(), row({"repetition_penalty": 1.7}, (3, 4, 3), (9,)), row()])
    expected = RepetitionPenaltyLogitsProcessor(1.7)(ids(3, 4, 3, 9), scores[1:2].clone())
    torch.testing.assert_close(found[1:2], expected)
    assert torch.equal(found[[0, 2]], scores[[0, 2]])


def test_presence_and_frequency_count_the_output_alone(scores):
    """Source: OpenAI's API reference, as vLLM has it: score - frequency * count - presence."""
    wish = {"presence_penalty": 0.5, "frequency_penalty": -1.25}
    found = adjusted(scores, [row(wish, (7, 8), (2, 5, 2, 2)), row(), row(wish, (1,))])
    expected = scores.clone()
    expected[0, 2] -= 0.5 - 1.25 * 3
    expected[0, 5] -= 0.5 - 1.25
    torch.testing.assert_close(found, expected)


def test_a_bias_is_that_of_transformers(scores):
    """Added once for each token; -100 all but forbids it."""
    bias = {3: -100.0, 30: 2.5}
    found = adjusted(scores, [row(), row(), row({"logit_bias": bias})])
    processor = SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()})
    torch.testing.assert_close(found[2:], processor(ids(1), scores[2:].clone()))


@pytest.mark.parametrize(
    ("prompt", "output"),
    [((1, 2), ()), ((1,), (2,)), ((), (5, 1, 2)), ((2, 1), (7,)), ((), (2,)), ((4,), (4, 4))],
)
def test_bad_words_are_those_of_transformers(scores, prompt, output):
    """A word's last token is out where its others were just said, in prompt or output."""
    words = ((6,), (2, 8), (1, 2, 9), (4, 4, 4, 4))
    found = adjusted(scores, [row({"bad_words_ids": words}, prompt, output), row(), row()])
    processor = NoBadWordsLogitsProcessor([list(word) for word in words])
    expected = processor(ids(*prompt, *output), scores[:1].clone())
    assert torch.equal(found[:1], expected)


def test_forbidden_tokens_cannot_be_drawn(scores):
    """Neither bias nor penalty brings them back."""
    wish = {"logit_bias": {3: 50.0}, "repetition_penalty": 0.1}
    found = adjusted(scores, [row(wish, (3,), forbidden=(3, 11)), row(), row()])
    assert torch.isneginf(found[0]).nonzero().ravel().tolist() == [3, 11]


def test_wishes_apply_in_vllms_order(scores):
    """Bias first, then repetition, then presence and frequency."""
    wish = {
        "logit_bias": {5: 4.0},
        "repetition_penalty": 2.0,
        "presence_penalty": 1.0,
        "frequency_penalty": 0.5,
    }
    found = adjusted(scores, [row(wish, (), (5,)), row(), row()])
    biased = float(scores[0, 5]) + 4.0
    divided = biased / 2 if biased > 0 else biased * 2
    assert float(found[0, 5]) == pytest.approx(divided - 1.5)


def test_lower_precisions_are_widened_first():
    """Penalties are computed in float32 whatever the model computes in."""
    found = adjusted(torch.ones(1, 4, dtype=torch.bfloat16), [row({"logit_bias": {1: 0.001}})])
    assert found.dtype == torch.float32
    assert float(found[0, 1]) == pytest.approx(1.001)


def test_a_structure_leaves_its_own_tokens(scores):
    """Of a row that has one all others are out, those behind the last bit too; before all else."""
    bits = np.packbits(np.isin(np.arange(24), (3, 17, 20)), bitorder="little")
    held = replace(row({"logit_bias": {3: 2.0, 4: 50.0}}, forbidden=(20,)), allowed=lambda: bits)
    found = adjusted(scores, [row(), held, row()])
    expected = torch.full((WIDTH,), -torch.inf)
    expected[3], expected[17] = scores[1, 3] + 2, scores[1, 17]
    torch.testing.assert_close(found[1], expected)
    assert torch.equal(found[[0, 2]], scores[[0, 2]])
