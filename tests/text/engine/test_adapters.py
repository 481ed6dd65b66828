"""Adapters of an engine: who has which, which are held, and whom a broken one hurts."""

from pathlib import Path

import pytest

from builders.adapters import stored_adapter
from builders.generation import Serving, sequence
from fakes.language_model import BROKEN, FakeLanguageModel, expected_tokens
from ge_backend.errors import InvalidRequest, ModelError
from ge_text.engine.adapters import AdapterCache, adapters_of
from ge_text.engine.figures import Tally
from ge_text.engine.settings import PreemptionMode, SpeculationMode

PIRATE, POET, CLERK = (stored_adapter(name) for name in ("pirate", "poet", "clerk"))
PROMPT = tuple(range(5, 18))


def serving(adapters=(None, PIRATE, POET, PIRATE), *, blocks=1000, prompt=PROMPT, **settings):
    guesses = settings.get("speculation") is SpeculationMode.MODEL
    draft = FakeLanguageModel() if guesses else None
    given = {"speculative_model": Path("draft")} if guesses else {}
    settings = {"lora_bytes": 250, **given, **settings}
    served = Serving(FakeLanguageModel(blocks=blocks), draft, **settings)
    for number, adapter in enumerate(adapters):
        asked = served.submit(str(number), prompt, seed=number, adapter=adapter, max_tokens=12)
        served.expected = [
            *getattr(served, "expected", ()),
            expected_tokens(prompt, asked, adapter=adapter.key if adapter else ""),
        ]
    return served


def texts(served):
    return [served.tokens(str(number)) for number in range(len(served.expected))]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 4, "max_num_seqs": 4, "prefill_chunk": 3},
        {"blocks": 11, "preemption": PreemptionMode.SWAP, "swap_bytes": 10**6},
        {"blocks": 11},
        {"speculation": SpeculationMode.NGRAM, "num_speculative_tokens": 3},
        {"speculation": SpeculationMode.MODEL, "num_speculative_tokens": 3},
    ],
)
def test_each_text_is_that_of_its_adapter(settings):
    """Several and none in one batch, with the same prompt: in chunks, in little room, with guesses.

    No text reads what was computed under another adapter.
    """
    served = serving(**settings).be_optimistic().run()
    assert texts(served) == served.expected
    assert len({tuple(text) for text in served.expected}) == 4
    counts = served.engine.figures().counts
    assert counts["adapter_loads"] == 2
    assert counts["prefix_found_tokens"] >= 12 or "blocks" in settings


def test_a_beginning_is_shared_under_the_same_adapter_only():
    """The second text of an adapter finds what the first one left; other adapters find nothing."""
    served = serving((PIRATE,)).run()
    for adapter, found in (
        (POET, 0),
        (None, 0),
        (stored_adapter("pirate", stamp="2"), 0),
        (PIRATE, 12),
    ):
        before = served.engine.figures().counts["prefix_found_tokens"]
        served.submit(f"{adapter}", PROMPT, adapter=adapter)
        served.run()
        assert served.engine.figures().counts["prefix_found_tokens"] == before + found


def test_samples_and_beams_have_their_requests_adapter():
    """All of them, whatever they share; the ranking of beams follows from it."""
    served = serving(())
    asked = served.submit("many", PROMPT, n=3, adapter=PIRATE)
    for name, adapter in (("plain", None), ("poet", POET)):
        served.submit(name, PROMPT, adapter=adapter, beam_width=3, max_tokens=6)
    served.run()
    for sample in range(3):
        expected = expected_tokens(PROMPT, asked, sample=sample, adapter=PIRATE.key)
        assert served.tokens("many", sample) == expected
    assert served.tokens("plain") != served.tokens("poet")


def test_what_another_engine_began_goes_on_under_its_adapter():
    """After a loss, prompt, tokens so far and the adapter's name are enough."""
    expected = serving((PIRATE,)).expected[0]
    second = serving(())
    second.submit("0", PROMPT, (tuple(expected[:5]),), adapter=PIRATE, max_tokens=12)
    assert second.run().tokens("0") == expected[5:]


def test_those_not_used_for_longest_make_room():
    """Within the budget all stay; beyond it the one that nobody has asked for since leaves."""
    served = serving(())
    for name, adapter in enumerate((PIRATE, POET, PIRATE, CLERK, PIRATE)):
        served.submit(str(name), adapter=adapter)
        served.run()
    figures = served.engine.figures()
    assert served.model.loaded == {PIRATE.key, CLERK.key}
    assert (figures.adapters, figures.adapter_bytes) == (2, 200)
    assert (figures.counts["adapter_loads"], figures.counts["adapter_evictions"]) == (3, 1)


def test_more_adapters_than_fit_take_turns():
    """Never more are held than the budget allows; who finds no room waits, and nobody is refused."""
    many = [stored_adapter(f"a{number}") for number in range(6)]
    served = serving((*many, None, *many), lora_bytes=250)
    while served.engine.has_work:
        served.step()
        running = served.engine._scheduler.running
        assert len(adapters_of(running)) <= 2
        assert len(served.model.loaded) <= 2
    assert texts(served) == served.expected


def test_an_adapter_that_can_never_be_held_is_refused():
    """Before it waits, with both numbers."""
    served = serving((PIRATE,))
    with pytest.raises(InvalidRequest, match=r"'huge' takes 251 bytes .* 250 .* lora_bytes"):
        served.submit("x", adapter=stored_adapter("huge", nbytes=251))
    assert texts(served.run()) == served.expected


def test_a_broken_adapter_fails_its_own_texts():
    """All that have it get its error; their neighbours of the same step go on, and it holds nothing."""
    broken = stored_adapter(BROKEN)
    served = serving((PIRATE, broken, None, broken))
    served.run()
    for number in (1, 3):
        assert isinstance(served.error(str(number)), ModelError)
    for number in (0, 2):
        assert served.tokens(str(number)) == served.expected[number]
    assert served.model.loaded == {PIRATE.key}


def test_steps_without_an_adapter_have_nothing_of_it():
    """They are what they were, and are not counted."""
    served = serving((None, None)).run()
    assert not any(batch.adapters for batch in served.model.steps)
    assert served.engine.figures().counts["adapted_steps"] == 0
    mixed = serving((None, PIRATE)).run()
    with_one = sum(bool(batch.adapters) for batch in mixed.model.steps)
    assert mixed.engine.figures().counts["adapted_steps"] == with_one > 0


def test_a_shelf_counts_an_adapter_once():
    """However many run with it; one that runs already always fits."""
    adapters = AdapterCache(FakeLanguageModel(), 200, Tally())
    running = [sequence(number=n, adapter=a) for n, a in enumerate((PIRATE, PIRATE, None, POET))]
    assert adapters.may_join(sequence(adapter=PIRATE), running)
    assert adapters.may_join(sequence(), running)
    assert not adapters.may_join(sequence(adapter=CLERK), running)
    assert adapters.may_join(sequence(adapter=CLERK), running[:3])
