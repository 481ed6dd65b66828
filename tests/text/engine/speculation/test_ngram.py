"""What followed the same tokens before is expected to follow again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.generation import sequence
from ge_text.engine.speculation.ngram import NgramDrafter, look_up

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@given(TEXTS, st.integers(1, 9))
def test_a_guess_is_what_followed_the_longest_and_latest_agreement(text, most):
    """Compared with a search through all places, letter by letter."""
    found = look_up(np.array(text), most)
    best = (1, 0)
    for end in range(1, len(text)):
        agreeing = 0
        while agreeing < min(end, 8) and text[end - 1 - agreeing] == text[-1 - agreeing]:
            agreeing += 1
        best = max(best, (agreeing, end))
    agreeing, end = best
    if agreeing < 2:
        assert found is None
    else:
        endless = text[end:] * 9
        assert found.tokens == tuple(endless[:most])
        assert found.strength == (agreeing >= 4) + (agreeing >= 8)


def test_a_text_that_goes_round_is_expected_to_go_on():
    """A guess may be longer than what is behind the place that was found."""
    assert look_up(np.array([9, 1, 2, 1, 2]), 5).tokens == (1, 2, 1, 2, 1)
    assert look_up(np.array([7, 7, 7]), 4).tokens == (7, 7, 7, 7)


def test_the_latest_of_equal_places_counts():
    """What was written last is the likelier to go on the same way."""
    assert look_up(np.array([5, 6, 1, 5, 6, 2, 5, 6]), 1).tokens == (2,)
    assert look_up(np.array([4, 5, 6, 1, 5, 6, 2, 4, 5, 6]), 1).tokens == (1,)


@pytest.mark.parametrize("text", [[5], [5, 5], [1, 2, 3, 4], [3, 1, 2, 3]])
def test_one_token_alone_is_no_reason(text):
    """At least two tokens have to agree."""
    assert look_up(np.array(text), 3) is None


def test_prompt_and_output_are_one_text():
    """Sequences without a guess are left out; each gets as many tokens as it is asked for."""
    one, two = sequence(prompt=(1, 2, 3, 4, 1), given=(2,)), sequence(prompt=(1, 2, 3))
    drafts = NgramDrafter().draft({one: 2, two: 2}, read=True)
    assert {s: guess.tokens for s, guess in drafts.items()} == {one: (3, 4)}
