"""A second model guesses: its cache follows every text, and no text follows it."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from builders.generation import PROMPTS, Serving, check_mixture, check_prompts, drawn_settings
from builders.integrity import drafter_defects
from fakes.language_model import FakeLanguageModel, expected_tokens
from ge_backend.errors import DeviceFault, GraphFailed
from ge_text.engine import runner
from ge_text.engine.plan import StepShapes
from ge_text.engine.settings import PreemptionMode, SpeculationMode
from ge_text.engine.shapes import rule_shapes
from ge_text.engine.speculation.model import READ_AT_ONCE
from ge_text.engine.speculation.verify import num_right
from ge_text.torch.sampler import draw

EOS = (7,)


class Apprentice(FakeLanguageModel):
    """Draws what the model draws with some probability; checks its cache as every fake does."""

    def __init__(self, share, **given):
        super().__init__(**given)
        self._share, self._chance = share, random.Random(1)

    def step(self, batch):
        drawn = super().step(batch)
        wrong = [self._chance.random() >= self._share for _ in drawn.tokens]
        return replace(drawn, tokens=np.where(wrong, (drawn.tokens + 1) % 64, drawn.tokens))


def serving(share=1.0, *, length=0, block_size=4, blocks=400, eos=EOS, draft=None, **given):
    return Serving(
        FakeLanguageModel(block_size=block_size, blocks=blocks, eos=eos),
        Apprentice(share, block_size=block_size, eos=eos, **(draft or {})),
        speculation=SpeculationMode.MODEL,
        speculative_model=Path("draft"),
        num_speculative_tokens=length,
        **given,
    )


def drafter_of(served):
    return served.engine._drafter


def run(served):
    """Let everything end; then nothing of the draft's cache may be anybody's."""
    served.run()
    drafter = drafter_of(served)
    assert drafter_defects(drafter) == []
    drafter.draft({}, read=True)
    assert drafter_defects(drafter) == []
    assert drafter._pool.num_used == 0
    return served.engine.figures().counts


@pytest.mark.parametrize("length", [0, 1, 4, 15])
@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_no_guess_changes_a_token(share, length):
    """Wrong, half right or right, of fixed and of chosen length; only the steps become fewer."""
    served = serving(share, length=length)
    counts = check_prompts(served, run)
    if length:
        assert counts["drafted_tokens"] > 0
        assert (counts["accepted_tokens"] == counts["drafted_tokens"]) == (share == 1.0)
        assert counts["accepted_tokens"] > 0 or not share
    if length == 15 and share == 1.0:
        assert counts["steps"] < 12


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_mixed_every_text_is_its_own(data):
    """Settings, arrivals, samples, cancellations, failures and guesses at random."""
    block_size = data.draw(st.sampled_from([1, 2, 4, 16]))
    # The longest text, 65 tokens, has room beside the draft's own blocks: else it is refused.
    least = 140 if block_size == 1 else 100
    served = serving(
        data.draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
        length=data.draw(st.sampled_from([0, 1, 3, 15])),
        block_size=block_size,
        blocks=data.draw(st.integers(least, 180)),
        **drawn_settings(data),
    )

    def step(served):
        served.step()
        assert drafter_defects(drafter_of(served)) == []

    check_mixture(
        data,
        served,
        st.lists(st.integers(8, 63), min_size=1, max_size=40),
        step=step,
        run=run,
        max_tokens=st.integers(1, 25),
        min_tokens=st.sampled_from([0, 0, 1]),
        speculation=st.sampled_from([True, True, False]),
    )


@pytest.mark.parametrize("mode", PreemptionMode)
def test_no_preemption_changes_a_token(mode):
    """Who has to leave loses the draft's blocks with its own, and is read again."""
    served = serving(0.7, length=4, blocks=28, preemption=mode, swap_bytes=10**6).be_optimistic()
    counts = check_prompts(served, run)
    assert counts["recomputed"] + counts["swapped_out"] > 0


def test_an_aborted_text_gives_its_part_of_the_drafts_cache_back():
    """With the next guess for anybody, whose text goes on as it would have."""
    served = serving(length=3, eos=())
    asked = served.submit("stays", PROMPTS[1], max_tokens=40)
    served.submit("goes", PROMPTS[8], max_tokens=40)
    for _ in range(4):
        served.step()
    used = drafter_of(served)._pool.num_used
    served.engine.cancel("goes")
    served.step()
    assert drafter_of(served)._pool.num_used <= used - len(PROMPTS[8]) // 4
    run(served)
    assert served.tokens("stays") == expected_tokens(PROMPTS[1], asked)


def test_both_caches_are_one_memory():
    """A block takes room in both, so there are half as many, and admission counts both."""
    assert serving(blocks=400).engine.figures().blocks_free == 199
    assert serving().draft.num_blocks == serving().model.num_blocks == 200


def test_samples_that_share_their_prompt_may_find_no_room_for_guesses():
    """The draft's cache has no more blocks than the model's: nobody waits for it."""
    served = serving(length=5, blocks=40, max_num_seqs=8, eos=())
    prompt = tuple(range(8, 48))
    asked = served.submit("a", prompt, n=6, max_tokens=9, seed=3)
    counts = run(served)
    for sample in range(6):
        assert served.tokens("a", sample) == expected_tokens(prompt, asked, sample=sample)
    assert counts["recomputed"] == 0
    assert counts["accepted_tokens"] > 0


def test_samples_share_what_was_read_of_their_prompt():
    """Full blocks are read once; each sample has its own from where it goes apart."""
    served = serving(0.8, length=3, max_num_seqs=8, eos=())
    prompt = tuple(range(8, 49))
    asked = served.submit("a", prompt, n=6, max_tokens=20, seed=3)
    for _ in range(5):
        served.step()
    tables = [shadow.blocks[:10].tolist() for shadow in drafter_of(served)._shadows.values()]
    assert len(tables) == 6
    assert all(table == tables[0] for table in tables)
    counts = run(served)
    for sample in range(6):
        assert served.tokens("a", sample) == expected_tokens(prompt, asked, sample=sample)
    assert counts["accepted_tokens"] > 40
    read = [len(batch.ids) for batch in served.draft.steps if len(batch.ids) > 6 * 4]
    assert sum(read) < 2 * len(prompt)


def test_a_draft_that_fails_hurts_nobody(caplog):
    """A text over which it fails goes on without guesses, says so once, and is not tried again."""

    def fail(batch):
        if any(row.sampling.seed == 5 for row in batch.rows):
            failures.append(batch)
            if len(batch.rows) == 1:  # what a failed step leaves in its blocks is anything
                served.draft.positions[served.draft._slots(batch.groups[0].tables[0])] = -1
            raise GraphFailed("the draft cannot")

    failures = []
    served = serving(length=4, eos=(), draft={"on_step": fail})
    prompt = (9, 63) * 15
    bad = served.submit("bad", prompt, max_tokens=30, n=2, seed=5)
    good = served.submit("good", (9, 62), max_tokens=30)
    counts = run(served)
    for sample in range(2):  # the second one does not fail, nor share what the first one lost
        expected = expected_tokens(prompt, bad, sample=sample)
        assert served.tokens("bad", sample) == expected
    assert served.tokens("good") == expected_tokens((9, 62), good)
    assert (counts["failed_steps"], counts["error"]) == (0, 0)
    assert counts["accepted_tokens"] > 20
    assert 0 < len(failures) <= 2
    assert [record.message for record in caplog.records] == [
        "a text goes on without guesses, whose model failed over it: the draft cannot"
    ]


def test_a_device_that_breaks_under_the_draft_is_broken():
    """No step goes on with it."""

    def break_down(batch):
        raise DeviceFault("gone")

    served = serving(length=4, draft={"on_step": break_down})
    served.submit("a", (9,), max_tokens=9)
    with pytest.raises(DeviceFault):
        served.run()


def test_long_texts_are_read_in_pieces():
    """No step waits for more than a piece, guesses begin behind the last, and reading is no cost."""
    served = serving(length=2, eos=(), blocks=2000)
    asked = {}
    for number, length in enumerate((450, 300)):
        prompt = tuple(8 + (n + number) % 50 for n in range(length))
        asked[prompt] = served.submit(str(number), prompt, max_tokens=20)
    served.step()
    assert not served.draft.steps
    counts = run(served)
    for number, (prompt, parameters) in enumerate(asked.items()):
        assert served.tokens(str(number)) == expected_tokens(prompt, parameters)
    sizes = [len(batch.ids) for batch in served.draft.steps]
    assert max(sizes) == READ_AT_ONCE
    assert 450 + 300 < sum(sizes) < 450 + 300 + 3 * 40
    assert counts["accepted_tokens"] > 20


def test_a_short_sighted_draft_guesses_as_far_as_it_sees():
    """A text longer than the draft can hold goes on without guesses."""
    served = serving(length=4, eos=(), draft={"max_positions": 16})
    asked = served.submit("a", (9, 10, 11), max_tokens=60)
    counts = run(served)
    assert served.tokens("a") == expected_tokens((9, 10, 11), asked)
    assert 8 <= counts["accepted_tokens"] <= 16
    assert max(int(batch.positions.max()) for batch in served.draft.steps) == 15


def test_both_run_in_shapes_that_were_made_ready():
    """The draft's steps too, among them pieces of prompts and what a run of right guesses lacks."""
    served = serving(
        0.8,
        length=3,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        batch_buckets="1,2,4",
        query_buckets="4,8",
        context_buckets="1,2,4,8,16",
    )
    lists = rule_shapes(served.engine._settings, 64, 4)
    shapes, draft = (
        StepShapes(lists, 4, lambda shape: shape[0] * shape[1] * shape[2]) for _ in range(2)
    )
    served.engine.use(shapes, draft)
    counts = check_prompts(served, run)
    assert counts["unplanned_groups"] == 0
    assert counts["accepted_tokens"] > 0
    tally = drafter_of(served)._runner._tally
    assert (tally.counts["unplanned_groups"], tally.counts["failed_steps"]) == (0, 0)
    assert {shape[1] for shape in tally.buckets} >= {1, 4, 8}


def test_another_engine_goes_on_where_one_was_lost():
    """Tokens so far are enough: the draft reads them, too."""
    first = serving(0.8, length=5, eos=())
    asked = {n: first.submit(str(n), PROMPTS[n], max_tokens=30, seed=n) for n in (2, 8)}
    for _ in range(3):
        first.step()
    second = serving(0.5, length=3, block_size=3, eos=())
    for number in asked:
        so_far = (tuple(first.tokens(str(number))),)
        second.submit(str(number), PROMPTS[number], generated=so_far, max_tokens=30, seed=number)
    run(second)
    for number, parameters in asked.items():
        tokens = first.tokens(str(number)) + second.tokens(str(number))
        assert tokens == expected_tokens(PROMPTS[number], parameters)


TEXTS, DRAWN, LETTERS = 2000, 3, 4


class Chain(FakeLanguageModel):
    """Draws as the real sampler does, by the token before alone."""

    def __init__(self, scores, **given):
        super().__init__(vocabulary=LETTERS, **given)
        self.scores = scores

    def step(self, batch):
        return draw(self.scores[torch.from_numpy(batch.ids[batch.sampled])], batch.rows)


@pytest.fixture(scope="module")
def scores():
    """Of each letter behind each: the model's, and those of one that guesses."""
    generator = torch.Generator().manual_seed(3)
    model = torch.randn(LETTERS, LETTERS, generator=generator)
    return model, model + 0.8 * torch.randn(LETTERS, LETTERS, generator=generator)


def strangeness(scores):
    """Return chi-square of texts against the exact joint distribution, in standard deviations."""
    served = Serving(
        Chain(scores[0]),
        Chain(scores[1]),
        speculation=SpeculationMode.MODEL,
        speculative_model=Path("draft"),
        num_speculative_tokens=3,
        max_waiting_requests=TEXTS,
    )
    for number in range(TEXTS):
        served.submit(str(number), (0,), max_tokens=DRAWN, seed=7919 * number + 1)
    while served.engine.has_work:
        served.engine.step()
    counts = served.engine.figures().counts
    assert counts["accepted_tokens"] / counts["drafted_tokens"] > 0.3
    seen = np.zeros((LETTERS,) * DRAWN)
    texts = {str(number): [] for number in range(TEXTS)}
    for update in served.updates:
        texts[update.id].extend(update.tokens)
    np.add.at(seen, tuple(np.array(list(texts.values())).T), 1)
    each = torch.softmax(scores[0].double(), -1).numpy()
    exact = np.einsum("a,ab,bc->abc", each[0], each, each) * TEXTS
    free = exact.size - 1
    return (((seen - exact) ** 2 / exact).sum() - free) / (2 * free) ** 0.5


def test_drawn_texts_have_the_models_distribution(scores):
    """Of the model's own scores, whatever the other one thinks likely."""
    assert abs(strangeness(scores)) < 4


@pytest.mark.parametrize(
    "judged",
    [
        lambda drafts, drawn: len(drafts),
        lambda drafts, drawn: min(len(drafts), num_right(drafts, drawn) + 1),
    ],
    ids=["nobody", "one behind"],
)
def test_the_usual_mistakes_would_show(scores, monkeypatch, judged):
    """Guesses that nobody judges, and what was drawn behind the first wrong one."""
    monkeypatch.setattr(runner, "num_right", judged)
    assert strangeness(scores) > 8


def timed(share, *, draft_s, read_s=0.0, texts=1, tokens=300, prompt=4):
    """Return how many times as fast texts are on models whose steps take so long, and figures."""
    served = serving(share, eos=(), blocks=8000, prefill_chunk=100)
    served.clock.tick_s = 0

    def take(per_step, per_token):
        def on_step(batch):
            served.clock.now_s += per_step + per_token * len(batch.ids)

        return on_step

    served.model._on_step = take(0.02, 0.0002)
    served.draft._on_step = take(draft_s, read_s)
    for number in range(texts):
        ids = tuple(9 + (number + place) % 50 for place in range(prompt))
        served.submit(str(number), ids, max_tokens=tokens, seed=number, ignore_eos=True)
    while served.engine.figures().counts["generated_tokens"] < texts:
        served.step()
    begun_s = served.clock.now_s
    run(served)
    plain_s = (tokens - 1) * (0.02 + 0.0002 * texts)
    return plain_s / (served.clock.now_s - begun_s), served.engine.figures()


@pytest.mark.parametrize("texts", [1, 8])
@pytest.mark.parametrize(
    ("share", "draft_s", "least", "most"),
    [(0.95, 0.002, 1.8, 5.0), (0.95, 0.03, 0.95, 1.05), (0.2, 0.004, 0.95, 1.1)],
)
def test_auto_weighs_what_guessing_takes(share, draft_s, least, most, texts):
    """A quick draft that is right is worth much; a slow one or a wrong one costs no 5 %."""
    ratio, figures = timed(share, draft_s=draft_s, texts=texts)
    assert least < ratio < most
    assert figures.histograms["drafting"].total > 0
    assert figures.histograms["overhead"].total < 0.01
