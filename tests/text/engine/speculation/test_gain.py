"""Drafts are verified where they bring more than they cost."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_text.engine.speculation.base import STRENGTHS
from ge_text.engine.speculation.gain import (
    DEBT,
    FIRST,
    LEAST,
    MARGIN,
    MOST,
    SHARE,
    Acceptance,
    SpeculationBudget,
    choose_lengths,
)

LENGTHS = (1, 3, 7)
OFFERS = st.lists(st.tuples(st.floats(0, 0.99), st.integers(0, 9)), max_size=4)


def rate(offers, chosen, rows, share):
    """Return tokens per time of a step without drafts."""
    tokens = rows + sum(
        right**n for (right, _), k in zip(offers, chosen, strict=True) for n in range(1, k + 1)
    )
    return tokens / (1 + share * sum(chosen))


def chosen_of(offers, rows, share, budget=None):
    return choose_lengths(
        offers, rows=rows, time=lambda drafts: 1 + share * drafts, lengths=LENGTHS, budget=budget
    )


@given(OFFERS, st.integers(1, 4), st.floats(0, 0.5))
def test_no_other_choice_is_noticeably_faster(offers, others, share):
    """Compared with all there are: nothing gains more than the margin that is asked for."""
    rows = len(offers) + others
    chosen = chosen_of(offers, rows, share)
    ladders = [[0, *(k for k in LENGTHS if k <= most)] for _, most in offers]
    assert all(k in ladder for k, ladder in zip(chosen, ladders, strict=True))
    best = max(rate(offers, ks, rows, share) for ks in itertools.product(*ladders))
    own = rate(offers, chosen, rows, share)
    assert own >= rate(offers, [0] * len(offers), rows, share)
    assert own >= best / MARGIN / LEAST


@pytest.mark.parametrize(
    ("rows", "right", "share", "expected"),
    [
        (1, 0.9, 0.02, 7),
        (1, 0.2, 0.02, 1),
        (1, 0.2, 0.2, 0),
        (8, 0.9, 0.05, 3),
        (32, 0.9, 0.05, 0),
        (32, 0.9, 0.01, 3),
        (32, 0.98, 0.005, 7),
        (1, 0.9, 0.0, 7),
    ],
)
def test_length_follows_from_rightness_cost_and_company(rows, right, share, expected):
    """Sure guesses go far, dear ones do not, and the more texts the less each draft adds."""
    assert set(chosen_of([(right, 15)] * rows, rows, share)) == {expected}


def test_the_surest_come_first():
    """Where not all are worth it; a bound on all ends with the first that does not fit."""
    offers = [(0.3, 7), (0.95, 7), (0.6, 2)]
    assert chosen_of(offers, 3, 0.2)[1] > 0
    assert chosen_of(offers, 3, 0.2)[0] == 0
    assert chosen_of(offers, 3, 0.0, budget=4) == [0, 3, 0]


def test_what_the_first_draft_costs_is_paid_by_many():
    """A few drafts may not be worth what verifying costs at all, while many are."""

    def time(drafts):
        return 1.5 + 0.001 * drafts if drafts else 1.0

    assert choose_lengths([(0.3, 7)], rows=1, time=time, lengths=LENGTHS) == [0]
    assert choose_lengths([(0.9, 7)], rows=1, time=time, lengths=LENGTHS) == [7]
    assert choose_lengths([(0.9, 1)], rows=1, time=time, lengths=LENGTHS) == [1]
    assert choose_lengths([(0.9, 1)], rows=2, time=time, lengths=LENGTHS) == [0]
    assert choose_lengths([(0.9, 7)] * 2, rows=2, time=time, lengths=LENGTHS) == [7, 7]


def learned(share, *, runs=300, length=4, of_all=None, strength=1):
    """Return what is expected after runs of drafts each of which is right with this probability."""
    chance, found = random.Random(5), Acceptance(of_all)
    for _ in range(runs):
        right = next((n for n in range(length) if chance.random() >= share), length)
        found.observe(strength, right=right, tested=min(right + 1, length))
    return found


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("length", [1, 4, 15])
def test_the_probability_is_found_whatever_the_length(share, length):
    """Neither drafts that nobody tested nor the token in the place of a wrong one count."""
    assert learned(share, length=length).expected(1) == pytest.approx(share, abs=0.08)


def test_strengths_are_apart():
    """What is learned of one says nothing of another; before anything was, stronger is likelier."""
    found = learned(0.0)
    assert found.expected(1) < 0.05
    assert [found.expected(0), found.expected(2)] == [
        Acceptance().expected(0),
        Acceptance().expected(2),
    ]
    fresh = [Acceptance().expected(strength) for strength in range(STRENGTHS)]
    assert fresh == sorted(fresh)


def test_a_new_sequence_is_expected_to_be_like_the_others_until_it_shows_otherwise():
    """Its own tests soon outweigh those of all."""
    of_all = learned(0.9)
    one = Acceptance(of_all)
    assert one.expected(1) == pytest.approx(of_all.expected(1))
    for _ in range(12):
        one.observe(1, right=0, tested=1)
    assert one.expected(1) < 0.3
    assert of_all.expected(1) > 0.75
    assert Acceptance(of_all).expected(1) == of_all.expected(1)


def test_a_change_is_noticed():
    """Old tests fade."""
    found = learned(0.95, of_all=Acceptance())
    for _ in range(20):
        found.observe(1, right=0, tested=1)
    assert found.expected(1) < 0.45


def spent(budget, steps, loss):
    """Return how many of these steps lost that much, each as soon as it was allowed to."""
    lost = 0
    for _ in range(steps):
        tries = budget.for_trials
        lost += tries
        budget.take(-loss if tries else 0.0)
    return lost


def test_trials_without_a_gain_cost_a_share_of_the_time():
    """However much each of them costs."""
    for loss in (0.3, 3.0, 7.0):
        steps = 5000
        assert spent(SpeculationBudget(), steps, loss) * loss <= FIRST + SHARE * steps + loss
        assert spent(SpeculationBudget(), steps, loss) * loss >= 0.9 * SHARE * steps


def test_what_was_gained_may_be_spent_up_to_a_limit():
    """Past gains pay no endless losses."""
    budget = SpeculationBudget()
    for _ in range(1000):
        budget.take(2.0)
    assert spent(budget, 500, 1.0) <= MOST + SHARE * 500 + 1


def test_guesses_go_on_when_trials_may_not():
    """But not for ever, where what seemed worth it is not."""
    budget = SpeculationBudget()
    while budget.for_trials:
        assert budget.for_guesses
        budget.take(-1.0)
    assert budget.for_guesses
    for _ in range(int(DEBT) + 1):
        budget.take(-1.0)
    assert not budget.for_guesses
    for _ in range(int(2 / SHARE)):
        budget.take(0.0)
    assert budget.for_guesses


def test_one_stall_is_no_verdict():
    """A step that something else held up for long counts as a few."""
    budget = SpeculationBudget()
    budget.take(-1000.0)
    for _ in range(int(8 / SHARE)):
        budget.take(0.0)
    assert budget.for_trials
