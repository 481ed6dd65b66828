"""Every answer keeps to its structure, whatever becomes of the request on the way."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from builders.generation import Foretelling, Serving, sequence
from builders.structures import STRUCTURES, Wanted
from builders.writer import VOCABULARY, write_tokenizer
from fakes.language_model import FakeLanguageModel
from ge_text.engine.parameters import parse_parameters
from ge_text.engine.settings import PreemptionMode, SpeculationMode
from ge_text.engine.update import Finish
from ge_text.models.guide import open_guides
from ge_text.models.structure import Structure, StructureKind

EOS = (0,)
PROMPT = tuple(range(40, 52))
NUMBER = Wanted("guided_regex", "[0-9]{2,}x")
# Tokens for any of these structures: the longest take 1200, with the blanks that JSON may have.
ENOUGH = 2000


def several(items):
    return {"type": "array", "items": items, "minItems": 2, "maxItems": 3}


LONG = Wanted("guided_json", several(several(several({"const": {"a": [1, "b"]}}))))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture(scope="module")
def tokenizer(folder):
    return write_tokenizer(folder)


@pytest.fixture(scope="module")
def compiled(tokenizer, folder):
    made = open_guides(folder / "tokenizer.json", VOCABULARY, EOS)
    return lambda wanted: made(parse_parameters({wanted.name: wanted.value}).structure)


def model(blocks=1200):
    return FakeLanguageModel(vocabulary=VOCABULARY, max_positions=2048, blocks=blocks, eos=EOS)


def serving(blocks=1200, draft=None, **given):
    return Serving(model(blocks), draft, **given)


def check(served, name, sample, wanted, tokenizer, before=()):
    """Hold one sample's text against what it had to be."""
    text = tokenizer.decode([*before, *served.tokens(name, sample)])
    finish = served.ends(name)[sample]
    assert finish in {Finish.STOP, Finish.COMPLETE}
    assert wanted.keeps(text), text


@settings(max_examples=60, deadline=None)
@given(wanted=st.lists(STRUCTURES, min_size=1, max_size=4), seed=st.integers(0, 10**6))
@example(wanted=[LONG], seed=0)
def test_every_answer_parses(compiled, tokenizer, wanted, seed):
    """Several structures in one batch, three samples each, beside texts that are free."""
    served = serving(max_num_seqs=8)
    free = served.submit("free", PROMPT, seed=seed, max_tokens=20)
    for number, one in enumerate(wanted):
        served.submit(
            str(number),
            PROMPT,
            guide=compiled(one),
            seed=seed,
            n=3,
            max_tokens=ENOUGH,
            min_tokens=9,
        )
    served.run()
    for number, one in enumerate(wanted):
        for sample in range(3):
            check(served, str(number), sample, one, tokenizer)
    alone = serving()
    alone.submit("free", PROMPT, seed=seed, max_tokens=20)
    assert served.tokens("free") == alone.run().tokens("free")
    assert free.structure is None


@settings(max_examples=40, deadline=None)
@given(wanted=STRUCTURES, seed=st.integers(0, 10**6), steps=st.integers(0, 12))
def test_another_engine_goes_on_in_the_structure(compiled, tokenizer, wanted, seed, steps):
    """The tokens so far are enough: the text is the very same one."""
    whole, first, second = serving(), serving(), serving()
    asked = {"seed": seed, "max_tokens": ENOUGH}
    for served in (whole, first):
        served.submit("a", PROMPT, guide=compiled(wanted), **asked)
    for _ in range(steps):
        first.step()
    so_far = tuple(first.tokens("a"))
    if not first.ends("a"):
        second.submit("a", PROMPT, guide=compiled(wanted), generated=(so_far,), **asked)
        check(second.run(), "a", 0, wanted, tokenizer, so_far)
    assert [*so_far, *second.tokens("a")] == whole.run().tokens("a")


@pytest.mark.parametrize("mode", [PreemptionMode.RECOMPUTE, PreemptionMode.SWAP])
def test_who_has_to_make_room_stays_in_its_structure(compiled, tokenizer, mode):
    """Where a text is in its structure does not lie in the cache."""
    wanted = Wanted("guided_regex", "[a-z]{40}")
    served = serving(
        blocks=30, max_num_seqs=4, preemption=mode, swap_bytes=10**7, prefill_chunk=5
    ).be_optimistic()
    for number in range(4):
        served.submit(
            str(number), PROMPT[number:], guide=compiled(wanted), seed=number, max_tokens=60
        )
    served.run()
    counts = served.engine.figures().counts
    assert counts["swapped_in" if mode is PreemptionMode.SWAP else "recomputed"] > 0
    for number in range(4):
        check(served, str(number), 0, wanted, tokenizer)


@settings(max_examples=30, deadline=None)
@given(wanted=STRUCTURES, seed=st.integers(0, 10**6), length=st.sampled_from([1, 3, 7]))
def test_guessed_texts_keep_to_their_structure(compiled, tokenizer, wanted, seed, length):
    """With guesses, right and wrong ones, a text is the very same; none leaves the structure."""
    asked = {"seed": seed, "max_tokens": ENOUGH}
    plain = serving()
    plain.submit("a", PROMPT, guide=compiled(wanted), **asked)
    expected = plain.run().tokens("a")
    for wrong_every in (3, 1000):
        served = serving(speculation=SpeculationMode.NGRAM, num_speculative_tokens=length)
        served.engine._speculation._drafter = Foretelling({"a": expected}, wrong_every)
        served.submit("a", PROMPT, guide=compiled(wanted), **asked)
        check(served.run(), "a", 0, wanted, tokenizer)
        assert served.tokens("a") == expected


@pytest.mark.parametrize("limit", [60, 86])
def test_wrong_guesses_at_the_limits_fail_no_text(folder, tokenizer, monkeypatch, limit):
    """A text that is within the limits by itself is the very same, whatever was guessed."""
    monkeypatch.setattr("ge_text.models.guide.MAX_STATES", limit)
    many = Structure(StructureKind.REGEX, "([ab]*a[ab]{18}|b)+")  # a state for nearly each letter
    asked = {"seed": limit, "max_tokens": 60}
    plain = serving()
    made = open_guides(folder / "tokenizer.json", VOCABULARY, EOS)
    plain.submit("a", PROMPT, guide=made(many), **asked)
    expected = plain.run().tokens("a")
    assert plain.ends("a") == {0: Finish.STOP}
    (a, b) = tokenizer.encode("a").ids[0], tokenizer.encode("b").ids[0]
    other = {a: b, b: a}
    wrong = [other.get(t, t) if at % 2 == 0 else t for at, t in enumerate(expected)]
    served = serving(speculation=SpeculationMode.NGRAM, num_speculative_tokens=5)
    served.engine._speculation._drafter = Foretelling({"a": wrong}, wrong_every=1000)
    made = open_guides(folder / "tokenizer.json", VOCABULARY, EOS)
    served.submit("a", PROMPT, guide=made(many), **asked)
    assert served.run().tokens("a") == expected
    assert served.engine.figures().counts["drafted_tokens"] > 0


@settings(max_examples=20, deadline=None)
@given(wanted=STRUCTURES, seed=st.integers(0, 10**6), length=st.sampled_from([1, 3, 7]))
def test_a_second_model_guesses_within_the_structure(compiled, tokenizer, wanted, seed, length):
    """What it guesses keeps to the structure, so one that thinks alike is always right."""
    asked = {"seed": seed, "max_tokens": ENOUGH}
    plain = serving()
    plain.submit("a", PROMPT, guide=compiled(wanted), **asked)
    served = serving(
        draft=model(),
        speculation=SpeculationMode.MODEL,
        speculative_model=Path("draft"),
        num_speculative_tokens=length,
    )
    served.submit("a", PROMPT, guide=compiled(wanted), **asked)
    check(served.run(), "a", 0, wanted, tokenizer)
    assert served.tokens("a") == plain.run().tokens("a")
    counts = served.engine.figures().counts
    assert counts["accepted_tokens"] == counts["drafted_tokens"]


def test_a_text_that_is_cut_off_says_so(compiled, tokenizer):
    """With too few tokens the text is a beginning, and its end is the length."""
    served = serving()
    served.submit("a", PROMPT, guide=compiled(NUMBER), max_tokens=1)
    assert served.run().ends("a") == {0: Finish.LENGTH}
    assert not NUMBER.keeps(tokenizer.decode(served.tokens("a")))


def test_a_whole_text_ends_with_its_last_token(compiled):
    """No step is spent on an end of text where nothing else may follow; it is counted apart."""
    served = serving()
    served.submit("a", PROMPT, guide=compiled(Wanted("guided_choice", ["a"])), max_tokens=9)
    assert served.run().ends("a") == {0: Finish.COMPLETE}
    assert len(served.tokens("a")) == 1
    assert served.engine.figures().counts["complete"] == 1


def test_the_structure_alone_says_when_a_text_ends(compiled, tokenizer):
    """Neither a least number of tokens nor ignored ends of text make it longer."""
    made = sequence(
        guide=compiled(Wanted("guided_regex", "a*")), eos=EOS, min_tokens=9, ignore_eos=True
    )
    assert made.sample_row().forbidden == ()
    made.append(tokenizer.encode("a").ids[0])
    assert made.finish() is None
    made.append(0)
    assert made.finish() is Finish.STOP


def test_free_texts_have_no_mask():
    """Who asks for no structure pays nothing for it."""
    assert sequence().sample_row().allowed is None


def test_a_structure_beyond_its_limits_fails_its_text_alone(compiled, tokenizer):
    """A text that left its structure gets an error with its next token; a neighbour goes on."""
    served = serving()
    wrong = (tokenizer.encode("x").ids[0],)
    served.submit("wrong", PROMPT, guide=compiled(NUMBER), generated=(wrong,), max_tokens=9)
    served.submit("right", PROMPT, guide=compiled(NUMBER), max_tokens=ENOUGH)
    served.run()
    assert "guided_regex cannot be kept to" in str(served.error("wrong"))
    check(served, "right", 0, NUMBER, tokenizer)
