"""Text that may be sent: whole characters, and nothing that a stop text cuts."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_text.engine.text import TextAssembler

TEXTS = st.text("abc", max_size=12)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


class Pieces:
    """A stream whose tokens are places in a list of texts, with one more at the end."""

    def __init__(self, pieces, last=""):
        self.pieces, self.last = pieces, last

    def step(self, token):
        return self.pieces[token]

    def rest(self):
        last, self.last = self.last, ""
        return last


def assembled(pieces, stop=(), min_tokens=0):
    """Return the deltas, the rest, and the assembler."""
    assembler = TextAssembler(Pieces(pieces), tuple(stop), min_tokens)
    deltas = [assembler.take(token) for token in range(len(pieces))]
    return deltas, "" if assembler.stopped else assembler.rest(), assembler


def oracle(text, stops):
    """Read letter by letter; the first stop text to be complete cuts, of several the longest."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


def test_text_passes_where_nothing_stops_it():
    """Without stop texts every delta is what the stream gives."""
    assert assembled(["a", "", "bc"])[0] == ["a", "", "bc"]


def test_what_may_become_a_stop_text_is_held_back():
    """A delta never has a letter that a later token could cut off again."""
    deltas, rest, assembler = assembled(["x", "a", "b", "y"], ["abc"])
    assert (deltas, rest) == (["x", "", "", "aby"], "")
    assert not assembler.stopped


def test_a_stop_text_is_cut_out_across_tokens():
    """Nothing of the stop text is sent, and nothing behind it; its last token is counted."""
    deltas, _, assembler = assembled(["xa", "b", "cy", "z"], ["abc"])
    assert (deltas, assembler.stopped, assembler.tokens) == (["x", "", "", ""], True, 3)


def test_a_stop_text_may_be_left_in():
    """Then the text ends with it, and what the same token had behind it is cut off."""
    text = TextAssembler(Pieces(["ab", "cde"]), ("bc",), include_stop=True)
    assert [text.take(0), text.take(1)] == ["a", "bc"]
    assert text.stopped


def test_the_end_gives_out_what_was_held_back():
    """A sequence that ends otherwise has all of its text."""
    deltas, rest, _ = assembled(["xa", "b"], ["abc"])
    assert (deltas, rest) == (["x", ""], "ab")


def test_a_rest_is_given_once():
    """Asking twice does not double the text."""
    _, _, assembler = assembled(["a"], ["ab"])
    assert assembler.rest() == ""


@pytest.mark.parametrize(
    ("last", "rest", "stopped"), [("c", "", True), ("cd", "", True), ("y", "aby", False)]
)
def test_the_last_letters_of_a_stream_come_with_the_rest(last, rest, stopped):
    """A stop text that is complete with them counts."""
    assembler = TextAssembler(Pieces(["xa", "b"], last), ("abc",))
    assert [assembler.take(0), assembler.take(1)] == ["x", ""]
    assert (assembler.rest(), assembler.stopped) == (rest, stopped)
    assert assembler.rest() == ""


@pytest.mark.parametrize(("min_tokens", "text"), [(0, "x"), (1, "x"), (2, "xaby"), (4, "xabyab")])
def test_no_stop_text_counts_in_the_first_tokens(min_tokens, text):
    """Below min_tokens stop texts are text like any other."""
    deltas, rest, _ = assembled(["xa", "b", "y", "ab"], ["ab"], min_tokens)
    assert "".join(deltas) + rest == text


@given(TEXTS, STOPS, st.data())
def test_the_answer_does_not_depend_on_how_tokens_divide_the_text(text, stops, data):
    """Any division into tokens gives the text that reading it letter by letter gives."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    deltas, rest, _ = assembled(pieces, stops)
    assert "".join(deltas) + rest == oracle(text, stops)


@given(TEXTS, STOPS)
def test_no_more_is_held_back_than_may_be_cut(text, stops):
    """The longest end of the text with which a stop text begins and goes on."""
    whole = oracle(text, stops)
    if whole == text:
        begun = {stop[:length] for stop in stops for length in range(len(stop))}
        deltas, rest, _ = assembled([text], stops)
        assert rest == max((each for each in begun if text.endswith(each)), key=len, default="")
        assert deltas == [text.removesuffix(rest) if rest else text]


def test_stop_texts_that_nearly_come_take_no_time():
    """A text that many long ones begin with costs each letter once, not once per beginning."""
    stops = [" " * 120 + str(number) for number in range(128)]
    begun_s = time.thread_time()
    deltas, rest, _ = assembled([" " * 16] * 1000, stops)
    assert time.thread_time() - begun_s < 1
    assert (len("".join(deltas)), len(rest)) == (16_000 - 120, 120)
