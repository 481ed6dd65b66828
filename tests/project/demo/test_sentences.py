from __future__ import annotations

from collections import Counter

from demo.sentences import PAGE


def test_lengths_differ_as_in_real_traffic():
    """Most texts are short, the longest has well over a hundred words, the shortest three."""
    words = sorted(sentence.words for sentence in PAGE)

    assert words[0] == 3
    assert words[len(words) // 2] < 20
    assert words[-1] > 150


def test_topics_have_equally_many_texts():
    """Eight topics with eight different texts each."""
    assert set(Counter(sentence.topic for sentence in PAGE).values()) == {8}
    assert len({sentence.text for sentence in PAGE}) == 64
