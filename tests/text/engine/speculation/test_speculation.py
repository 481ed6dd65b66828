"""Whatever is guessed, every text is the one that it would have been; the rest is a matter of time."""

import random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from builders.generation import (
    OUTPUTS,
    PROMPTS,
    Serving,
    check_mixture,
    check_prompts,
    drawn_settings,
)
from fakes.language_model import FakeLanguageModel, expected_tokens
from ge_text.engine.plan import StepShapes
from ge_text.engine.settings import PreemptionMode, SpeculationMode
from ge_text.engine.shapes import rule_shapes
from ge_text.engine.speculation.base import STRENGTHS, Guess
from ge_text.engine.speculation.speculation import PROBE_LEAST
from ge_text.engine.update import Finish

EOS = (7,)


class Oracle:
    """Guesses right with some probability, because it knows what the fake model draws."""

    read_s = 0.0

    def __init__(self, share, *, costly=False, eos=EOS, seed=1):
        self.share, self.costly, self._eos = share, costly, eos
        self._chance = random.Random(seed)
        self._texts = {}
        self.asked = []

    def draft(self, asked, *, read):
        self.asked.append(dict(asked))
        found = {}
        for sequence, most in asked.items():
            if sequence not in self._texts:
                self._texts[sequence] = expected_tokens(
                    sequence.request.prompt,
                    sequence.request.parameters,
                    sample=sequence.sample,
                    eos=self._eos,
                )
            rest = self._texts[sequence][sequence.num_output :] + [9] * most
            tokens = [
                token if self._chance.random() < self.share else self._chance.randrange(64)
                for token in rest[:most]
            ]
            if self._chance.random() < 0.9:
                found[sequence] = Guess(tuple(tokens), self._chance.randrange(STRENGTHS))
        return found


def serving(share, *, length=0, costly=False, block_size=4, blocks=200, eos=EOS, **given):
    model = FakeLanguageModel(block_size=block_size, blocks=blocks, eos=eos)
    served = Serving(
        model, speculation=SpeculationMode.NGRAM, num_speculative_tokens=length, **given
    )
    served.oracle = Oracle(share, costly=costly, eos=eos)
    served.engine._speculation._drafter = served.oracle
    return served


@pytest.mark.parametrize("length", [0, 1, 4, 15])
@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("costly", [False, True])
def test_no_guess_changes_a_token(share, length, costly):
    """Wrong, half right or right, of fixed and of chosen length."""
    counts = check_prompts(serving(share, length=length, costly=costly))
    assert counts["generated_tokens"] == sum(
        len(expected_tokens(p, _asked(n), eos=EOS)) for n, p in enumerate(PROMPTS)
    )
    if length:
        assert counts["drafted_tokens"] > 0
        assert 0 <= counts["accepted_tokens"] <= counts["drafted_tokens"]
        assert counts["accepted_tokens"] > 0 or not share
    if length and share == 1.0:
        assert counts["steps"] < 30


def _asked(number):
    served = Serving()
    return served.submit("x", (9,), max_tokens=OUTPUTS[number], seed=number)


@hypothesis_settings(max_examples=80, deadline=None)
@given(st.data())
def test_whatever_is_mixed_every_text_is_its_own(data):
    """Settings, arrivals, samples, cancellations, failures and guesses at random."""
    served = serving(
        data.draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
        length=data.draw(st.sampled_from([0, 1, 3, 15])),
        costly=data.draw(st.booleans()),
        block_size=data.draw(st.sampled_from([1, 2, 4, 16])),
        blocks=data.draw(st.integers(50, 90)),
        **drawn_settings(data),
    )
    check_mixture(
        data,
        served,
        st.lists(st.integers(8, 63), min_size=1, max_size=20),
        max_tokens=st.integers(1, 25),
        speculation=st.sampled_from([True, True, False]),
    )


@pytest.mark.parametrize("mode", PreemptionMode)
def test_no_preemption_changes_a_token(mode):
    """Those who leave in the middle of guessing come back to the same text."""
    served = serving(0.7, length=4, blocks=14, preemption=mode, swap_bytes=10**6).be_optimistic()
    counts = check_prompts(served)
    assert counts["recomputed"] + counts["swapped_out"] > 0


@pytest.mark.parametrize("sizes", [("1,2,4", "4,8", "1,2,4,8,16"), ("", "", ""), ("3", "2", "16")])
def test_no_bucket_changes_a_token(sizes):
    """Rows with drafts and rows without share a shape that was made ready."""
    batch, query, context = sizes
    served = serving(
        0.8,
        length=3,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        batch_buckets=batch,
        query_buckets=query,
        context_buckets=context,
    )
    lists = rule_shapes(served.engine._settings, 64, 4)
    assert any(shape[0] > 1 and shape[1] == 4 for shape in lists.prompt)
    served.engine.use(StepShapes(lists, 4, lambda shape: shape[0] * shape[1] * shape[2]))
    counts = check_prompts(served)
    assert counts["unplanned_groups"] == 0
    assert counts["accepted_tokens"] > 0


def test_shapes_bound_the_drafts():
    """Without a shape for as many as are configured, fewer are verified."""
    served = serving(1.0, length=15, batch_buckets="1", query_buckets="8", context_buckets="16")
    lists = rule_shapes(served.engine._settings, 64, 4)
    short = tuple(shape for shape in lists.prompt if shape[1] <= 8)
    served.engine.use(StepShapes(type(lists)(lists.decode, short), 4, lambda shape: shape[1]))
    assert check_prompts(served)["unplanned_groups"] == 0
    drafted = [len(batch.rows) for batch in served.model.steps if len(batch.groups) == 1]
    assert max(drafted) == 8


@pytest.mark.parametrize("length", [1, 15])
def test_an_end_within_a_run_ends_the_text(length):
    """Of tokens that were guessed behind an end of text or a limit nobody hears."""
    served = serving(1.0, length=length, eos=tuple(range(0, 64, 4)))
    check_prompts(served, max_tokens=40)
    late = serving(1.0, length=length, eos=tuple(range(0, 64, 4)))
    check_prompts(late, max_tokens=40, min_tokens=12)
    assert all(len(late.tokens(str(n))) >= 12 for n in range(9))
    limited = serving(1.0, length=length, eos=())
    check_prompts(limited, max_tokens=5)
    assert set(limited.ends("1").values()) == {Finish.LENGTH}
    used = max(int(batch.positions.max()) for batch in limited.model.steps)
    assert used == max(map(len, PROMPTS)) + 5 - 2


def test_a_stop_text_within_a_run_ends_the_text():
    """The client that says so hears of no further token."""
    served = serving(1.0, length=7, eos=())
    asked = served.submit("a", (9, 9), max_tokens=40)
    whole = expected_tokens((9, 9), asked)
    assert len(set(whole[:20])) > 10
    stopped = serving(1.0, length=7, eos=())
    seen = []

    def sink(update):
        seen.extend(update.tokens)
        return len(seen) == 12

    stopped.submit("b", (9, 9), max_tokens=40)
    ((live, _),) = stopped.engine._live._notes
    live.sink = sink
    stopped.run()
    assert seen == whole[:12]


def test_a_request_may_do_without():
    """What a client switches off is off for it alone."""
    served = serving(1.0, length=7, eos=())
    served.submit("with", (9, 9), max_tokens=33)
    served.submit("without", (8, 9), max_tokens=33, speculation=False)
    served.run()
    last = {update.id: place for place, update in enumerate(served.updates)}
    assert last["with"] < last["without"]
    served.submit("beams", (7, 9), max_tokens=9, beam_width=2, temperature=0)
    served.run()
    assert {s.request.id for asked in served.oracle.asked for s in asked} == {"with"}


def test_another_engine_goes_on_where_one_was_lost():
    """Tokens so far are enough, also where the other one guesses otherwise or not at all."""
    first = serving(0.8, length=5)
    for number, prompt in enumerate(PROMPTS):
        first.submit(str(number), prompt, max_tokens=OUTPUTS[number], seed=number)
    for _ in range(3):
        first.step()
    second = serving(0.5, block_size=3)
    for number, prompt in enumerate(PROMPTS):
        if not first.ends(str(number)):
            second.submit(
                str(number),
                prompt,
                generated=(tuple(first.tokens(str(number))),),
                max_tokens=OUTPUTS[number],
                seed=number,
            )
    second.run()
    for number, prompt in enumerate(PROMPTS):
        tokens = first.tokens(str(number)) + second.tokens(str(number))
        assert tokens == expected_tokens(prompt, _asked(number), eos=EOS)


def timed(share, *, row_s, draft_s, texts=1, tokens=400, length=0):
    """Return steps and seconds of texts on a model whose steps take so long, and the drafts made."""
    served = serving(share, length=length, eos=(), blocks=4000, prefill_chunk=100)
    model, clock = served.model, served.clock
    clock.tick_s = 0

    def take(batch):
        rows = sum(int((group.lengths > 0).sum()) for group in batch.groups)
        clock.now_s += 0.02 + row_s * rows + draft_s * max(0, len(batch.ids) - rows)

    model._on_step = take
    served.oracle._chance = random.Random(2)
    for number in range(texts):
        served.submit(str(number), (9, 10 + number), max_tokens=tokens, seed=number)
    served.run()
    return served.engine.figures(), clock.now_s


@pytest.mark.parametrize("texts", [1, 8])
@pytest.mark.parametrize(
    ("share", "draft_s", "least", "most"),
    [(0.97, 0.0005, 2.0, 9.0), (0.97, 0.01, 0.95, 2.0), (0.05, 0.005, 0.95, 1.1)],
)
def test_auto_pays_where_it_can_and_costs_next_to_nothing_elsewhere(
    share, draft_s, least, most, texts
):
    """Right guesses on cheap steps are worth much; dear steps and wrong guesses cost no 5 %."""
    counts = {"row_s": 0.001, "draft_s": draft_s, "texts": texts, "tokens": 200}
    figures, seconds = timed(share, **counts)
    plain_s = 200 * (0.02 + 0.001 * texts)
    assert least < plain_s / seconds < most
    histograms = figures.histograms
    assert sum(histograms["draft_length"].counts) == sum(histograms["run_tokens"].counts)
    assert histograms["draft_length"].total == figures.counts["drafted_tokens"]
    gained = histograms["run_tokens"].total - sum(histograms["run_tokens"].counts)
    assert gained == figures.counts["accepted_tokens"]


def test_what_became_cheap_is_noticed():
    """Where nothing was worth it a few drafts are verified now and then all the same."""
    served = serving(0.97, eos=(), blocks=4000)
    clock, dear = served.clock, [0.05]
    clock.tick_s = 0

    def take(batch):
        clock.now_s += 0.02 + dear[0] * max(0, len(batch.ids) - 1)

    served.model._on_step = take
    served.submit("a", (9,), max_tokens=500)
    for _ in range(100):
        served.step()
    before = served.engine.figures().counts["drafted_tokens"]
    assert 0 < before <= PROBE_LEAST * 6
    dear[0] = 0.0
    served.run()
    counts = served.engine.figures().counts
    assert counts["accepted_tokens"] > 100
    assert counts["steps"] < 450


def test_off_is_free():
    """Without the setting nobody is asked for anything, and nothing is counted."""
    served = Serving(FakeLanguageModel(eos=EOS))
    assert served.engine._speculation is None
    check_prompts(served)
    figures = served.engine.figures()
    assert figures.counts["drafted_tokens"] == 0
    assert sum(figures.histograms["draft_length"].counts) == 0
