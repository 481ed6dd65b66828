"""Drafts are verified where they bring more than they cost."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.generate.speculation.lengths import MARGIN, choose_lengths

LENGTHS = (1, 3, 7)
OFFERS = st.lists(st.tuples(st.floats(0, 0.99), st.integers(0, 9)), max_size=4)


def rate(offers, chosen, rows, share):
    """Return tokens per time of a step without drafts."""
    tokens = rows + sum(
        right**n for (right, _), k in zip(offers, chosen, strict=True) for n in range(1, k + 1)
    )
    return tokens / (1 + share * sum(chosen))


@given(OFFERS, st.integers(0, 4), st.floats(0, 0.5))
def test_no_other_choice_is_noticeably_faster(offers, others, share):
    """Compared with all there are: nothing gains more than the margin that is asked for."""
    rows = len(offers) + others
    chosen = choose_lengths(offers, rows=max(1, rows), share=share, lengths=LENGTHS)
    assert all(
        k == 0 or (k in LENGTHS and k <= most) for k, (_, most) in zip(chosen, offers, strict=True)
    )
    ladders = [[0, *(k for k in LENGTHS if k <= most)] for _, most in offers]
    best = max(rate(offers, ks, max(1, rows), share) for ks in itertools.product(*ladders))
    own = rate(offers, chosen, max(1, rows), share)
    assert own >= rate(offers, [0] * len(offers), max(1, rows), share)
    assert own >= best / MARGIN


@pytest.mark.parametrize(
    ("rows", "right", "share", "expected"),
    [
        (1, 0.9, 0.02, 7),
        (1, 0.2, 0.02, 1),
        (1, 0.2, 0.2, 0),
        (8, 0.9, 0.05, 3),
        (32, 0.9, 0.05, 0),
        (32, 0.98, 0.005, 7),
        (32, 0.9, 0.01, 3),
        (1, 0.9, 0.0, 7),
    ],
)
def test_length_follows_from_rightness_cost_and_company(rows, right, share, expected):
    """Sure guesses go far, dear ones do not, and the more texts the less each draft adds."""
    chosen = choose_lengths([(right, 15)] * rows, rows=rows, share=share, lengths=LENGTHS)
    assert set(chosen) == {expected}


def test_the_surest_come_first():
    """Where not all are worth it; a bound on all ends with the first that does not fit."""
    offers = [(0.3, 7), (0.95, 7), (0.6, 2)]
    assert choose_lengths(offers, rows=3, share=0.2, lengths=LENGTHS)[1] > 0
    assert choose_lengths(offers, rows=3, share=0.2, lengths=LENGTHS)[0] == 0
    assert choose_lengths(offers, rows=3, share=0.0, lengths=LENGTHS, budget=4) == [0, 3, 0]
