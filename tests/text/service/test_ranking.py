"""The best of several samples, told at the end."""

from ge_text.protocol import Delta, Refused
from ge_text.service.ranking import Ranking


class Box:
    def __init__(self):
        self.put_in, self.said = [], []

    def put(self, *deltas):
        self.put_in += deltas

    def say(self, message):
        self.said.append(message)


def delta(sample, text, cumulative, finish=""):
    return Delta(
        number=7,
        sample=sample,
        text=text,
        ids=tuple(text.encode()),
        samples=3,
        cumulative=cumulative,
        finish=finish,
    )


def ranked(**given):
    """Draw three samples, whose log-probabilities per token are -1, -0.5 and -2."""
    box = Box()
    ranking = Ranking(box, 2, **given)
    ranking.put(delta(0, "a", -0.1))
    ranking.put(delta(1, "bb", -1.0, "stop"))
    ranking.put(delta(0, "aa", -3.0, "length"))
    assert box.put_in == []
    ranking.put(delta(2, "c", -2.0, "length"))
    return box.put_in


def test_the_best_are_told_when_all_have_ended():
    """By log-probability per token, so that long texts lose nothing, under places of their own."""
    told = [(one.sample, one.samples, one.text, one.cumulative) for one in ranked()]
    assert told == [(0, 2, "bb", -1.0), (1, 2, "aaa", -3.0)]


def test_what_was_told_before_an_executor_died_is_not_told_again():
    """The same samples come again, in the same order."""
    assert [one.text for one in ranked(told=frozenset({0}))] == ["aaa"]


def test_a_refusal_goes_through():
    """An error of one sample is the request's, as without a ranking."""
    box = Box()
    Ranking(box, 1).say(Refused(number=7, error="GraphFailed", message="x"))
    assert [one.message for one in box.said] == ["x"]
