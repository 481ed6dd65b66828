"""Beam search finds the same texts whatever is served beside it, and leaves nothing behind."""

import time

import numpy as np
import pytest

from builders.generation import Serving
from fakes import language_model
from fakes.language_model import NAN, POISON, FakeLanguageModel, best_tokens, expected_tokens
from ge_backend.errors import Cancelled, GraphFailed, InvalidRequest
from ge_text.engine.beams import BeamSearch
from ge_text.engine.parameters import parse_parameters
from ge_text.engine.settings import PreemptionMode
from ge_text.engine.update import Finish

PROMPTS = [tuple(8 + (n * 13 + i * i * 7) % 56 for i in range(3 + n * 5 % 17)) for n in range(5)]
ENDS = (7, 21)


def search(ends=(9,), most=5, **asked):
    return BeamSearch(parse_parameters({"beam_width": 2, **asked}), frozenset(ends), most)


def offer(*pairs):
    return np.array([token for token, _ in pairs]), np.array([p for _, p in pairs], np.float32)


def expected(prompt, most=10, **asked):
    """Return what a search gives that nobody is served beside: tokens and why each text ended."""
    parameters = parse_parameters({"beam_width": 3, "max_tokens": most, **asked})
    alone, texts = BeamSearch(parameters, frozenset(ENDS), most), [()]
    count = parameters.beam_width + len(ENDS)
    while going := alone.turn([best_tokens((*prompt, *text), 64, count) for text in texts]):
        texts = [(*texts[place], token) for place, token in going]
    return [
        (path.tokens, Finish.STOP if path.tokens[-1] in ENDS else Finish.LENGTH)
        for path in alone.whole[: parameters.n]
    ]


def serving(block_size=4, blocks=200, **given):
    model = FakeLanguageModel(block_size=block_size, blocks=blocks, eos=ENDS)
    return Serving(model, **given)


def submit(served, name, prompt, most=10, **asked):
    served.submit(name, prompt, **{"beam_width": 3, "max_tokens": most, **asked})


def answer(served, name):
    return [(update.tokens, update.finish) for update in served.updates if update.id == name]


def test_the_best_offers_of_all_beams_go_on():
    """Both may come of one beam; scores add up."""
    beams = search()
    assert beams.turn([offer((1, -0.5), (2, -1.0), (9, -3.0))]) == [(0, 1), (0, 2)]
    going = beams.turn([offer((3, -2.0), (4, -2.5)), offer((5, -0.1), (6, -0.2))])
    assert going == [(1, 5), (1, 6)]


def test_whole_texts_compete_by_length():
    """The sum of log-probabilities over the length to the power of the penalty."""

    def best(penalty):
        beams = search(most=2, length_penalty=penalty)
        beams.turn([offer((9, -1.0), (1, -1.2))])
        assert beams.turn([offer((2, -0.2), (3, -9.0))]) == []
        return [path.tokens for path in beams.whole]

    assert best(0.0) == [(9,), (1, 2)]
    assert best(2.0) == [(1, 2), (9,)]


@pytest.mark.parametrize(("early", "turns"), [(True, 2), (False, 3), ("never", 4)])
def test_a_search_is_over_when_it_is_told_to_be(early, turns):
    """With as many whole texts as beams; or when none is expected to win; or when none can."""
    beams = search(most=9, early_stopping=early, length_penalty=0.5)
    assert beams.turn([offer((9, -1.0), (1, -1.1), (2, -1.2))])
    count = 1
    for chance in (-0.1, -1.0, -1.0, -1.0):
        count += 1
        if not beams.turn([offer((9, -0.5), (3, chance)), offer((4, -0.9), (9, -2.0))]):
            break
    assert count == turns


def test_no_text_ends_below_the_least_number_of_tokens():
    """An end is no offer before."""
    beams = search(min_tokens=1)
    assert beams.turn([offer((9, -0.1), (1, -1.0), (2, -1.1))]) == [(0, 1), (0, 2)]
    assert beams.whole == []


def test_the_best_ways_are_those_of_all_sorted():
    """With many ends among the offers and few, and with scores that are equal."""
    rng = np.random.default_rng(5)
    for case in range(200):
        ends = set(rng.choice(40, case % 30, replace=False).tolist())
        beams = search(ends, most=9, beam_width=3, min_tokens=case % 3, early_stopping="never")
        scores, whole, going = [np.float32(0)], [], [(0, 0)]
        for length in range(1, 5):
            chances = np.log(rng.integers(1, 9, (len(scores), 40)) / 9).astype(np.float32)
            offers = [np.lexsort((range(40), -each))[: 3 + len(ends)] for each in chances]
            ways = sorted(
                (-(scores[place] + chances[place][token]), place, token)
                for place, offered in enumerate(offers)
                for token in offered.tolist()
                if not (token in ends and length <= case % 3)
            )
            whole += [-way[0] / np.float32(length) for way in ways[:3] if way[2] in ends]
            whole = sorted(whole, reverse=True)[:3]
            going = beams.turn([(found, chances[i][found]) for i, found in enumerate(offers)])
            assert [path.score for path in beams.whole] == whole
            if not going:
                break
            expected_ways = [way for way in ways if way[2] not in ends][:3]
            assert going == [way[1:] for way in expected_ways]
            scores = [-way[0] for way in expected_ways]


def test_a_search_with_many_ends_takes_little_time():
    """Each turn offers as many tokens of each beam as may end the text."""
    ends = range(50_000)
    beams = search(ends, most=100, beam_width=8, early_stopping="never")
    offered = np.arange(50_008), np.linspace(-9, -10, 50_008, dtype=np.float32)
    begun_s = time.thread_time()
    for count in (1, 8):
        assert len(beams.turn([offered] * count)) == 8
    assert time.thread_time() - begun_s < 0.5


@pytest.mark.parametrize(("most", "found"), [(1, 2), (5, 0)])
def test_a_search_with_nothing_to_go_on_with_is_over(monkeypatch, most, found):
    """With the texts that it has, or with an error where they are too few: it never spins."""
    offers = {1: offer((8, -1.0), (9, -2.0), (7, -3.0)), 5: offer((7, -1.0), (21, -2.0))}
    monkeypatch.setattr(language_model, "best_tokens", lambda *_: offers[most])
    served = serving()
    submit(served, "two", PROMPTS[0], most=most, min_tokens=1, n=2)
    submit(served, "three", PROMPTS[0], most=most, min_tokens=1, n=3)
    served.run()
    assert answer(served, "two") == (
        [((8,), Finish.LENGTH), ((9,), Finish.LENGTH)] if found else [((), Finish.ERROR)] * 2
    )
    assert served.ends("three") == dict.fromkeys(range(3), Finish.ERROR)
    assert f"found {found} whole texts, and n is 3" in str(served.error("three"))
    assert served.engine.figures().blocks_used == 0


@pytest.mark.parametrize("chunk", [0, 2])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_neighbours_change_nothing(block_size, chunk):
    """Searches and samples beside each other give what each gives alone."""
    served = serving(block_size, prefill_chunk=chunk, max_num_seqs=7, max_num_batched_tokens=30)
    asked = {}
    for number, prompt in enumerate(PROMPTS):
        submit(served, f"b{number}", prompt, n=2)
        asked[number] = served.submit(str(number), prompt, max_tokens=12, seed=number)
        served.submit(f"x{number}", prompt, max_tokens=50)
        served.step()
        served.engine.cancel(f"x{number}")
    served.run()
    for number, prompt in enumerate(PROMPTS):
        assert answer(served, f"b{number}") == expected(prompt, n=2)
        assert served.tokens(str(number)) == expected_tokens(prompt, asked[number], eos=ENDS)


@pytest.mark.parametrize("mode", PreemptionMode)
def test_beams_that_have_to_make_room_begin_again(mode):
    """All of them leave at once, and the same texts come out in the end."""
    served = serving(blocks=24, preemption=mode, swap_bytes=10**6, max_num_seqs=16)
    served.be_optimistic()
    for number, prompt in enumerate(PROMPTS):
        submit(served, str(number), prompt, most=14, n=3)
    served.run()
    for number, prompt in enumerate(PROMPTS):
        assert answer(served, str(number)) == expected(prompt, most=14, n=3)
    assert served.engine.figures().counts["recomputed"] > 0


def test_a_search_has_as_many_seats_as_beams():
    """Two searches that would each have half of their beams running would wait for ever."""
    served = serving(max_num_seqs=4)
    for number, prompt in enumerate(PROMPTS):
        submit(served, str(number), prompt)
    while served.engine.has_work:
        served.step()
        assert served.engine.figures().running <= 4
    assert all(answer(served, str(n)) == expected(PROMPTS[n]) for n in range(5))


def test_prompts_and_beginnings_are_computed_once():
    """Each turn computes one token per beam; what beams have in common is shared."""
    served = serving(prefix_cache=False)
    submit(served, "a", PROMPTS[3], ignore_eos=True)
    served.run()
    counts = served.engine.figures().counts
    assert counts["computed_tokens"] == len(PROMPTS[3]) + 9 * 3
    assert counts["copied_blocks"] > 0
    assert (counts["generated_tokens"], counts["length"]) == (10, 1)


@pytest.mark.parametrize("poison", [POISON, NAN])
def test_an_error_of_a_beam_is_the_searches(poison):
    """Every text that was asked for gets it, once; neighbours get none."""
    served = serving()
    submit(served, "bad", (9, poison, 9), n=2)
    submit(served, "good", PROMPTS[1])
    served.run()
    assert served.ends("bad") == {0: Finish.ERROR, 1: Finish.ERROR}
    assert isinstance(served.error("bad"), GraphFailed)
    assert len(answer(served, "bad")) == 2
    assert answer(served, "good") == expected(PROMPTS[1])


def test_a_cancelled_search_is_gone_with_all_of_its_beams():
    """Nothing is kept, and the client is told once per text."""
    served = serving()
    submit(served, "a", PROMPTS[1], most=50, n=3, ignore_eos=True)
    for _ in range(5):
        served.step()
    served.engine.cancel("a")
    served.step()
    assert not served.engine.has_work
    assert served.engine.figures().blocks_used == 0
    assert [update.sample for update in served.updates] == [0, 1, 2]
    assert isinstance(served.error("a"), Cancelled)


def test_a_search_that_another_engine_began_begins_again():
    """It has told nothing, so its client notices nothing."""
    served = serving()
    submit(served, "a", PROMPTS[1], generated=((), (), None))
    served.run()
    assert answer(served, "a") == expected(PROMPTS[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_seqs": 2}, "beam_width is 3; the model has 64 tokens and runs 2 sequences"),
        (
            {"blocks": 9},
            "is 9 tokens, of prompt and output together: a prompt of 3 and an output of 10",
        ),
    ],
)
def test_a_search_that_can_never_run_is_refused(settings, message):
    """All beams have to fit at once, each with its own text to the end."""
    served = serving(**settings)
    with pytest.raises(InvalidRequest) as caught:
        submit(served, "a", PROMPTS[0])
    assert message in str(caught.value)
