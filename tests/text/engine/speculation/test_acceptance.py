"""How often drafts are right is learned from those that were tested."""

import random

import pytest

from ge_text.engine.speculation.acceptance import Acceptance
from ge_text.engine.speculation.base import STRENGTHS


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
