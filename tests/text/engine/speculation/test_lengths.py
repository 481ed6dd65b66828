"""Drafts are verified where they bring more than they cost."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_text.engine.speculation.lengths import LEAST, MARGIN, choose_lengths

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
