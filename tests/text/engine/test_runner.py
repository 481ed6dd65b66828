"""What becomes of a step's sequences when it fails."""

import gc
import logging
import weakref
from dataclasses import replace

import numpy as np
import pytest

from builders.generation import Clock, sequence
from fakes.language_model import NAN, POISON, FakeLanguageModel, next_token
from ge_backend.errors import DeviceFault, GraphFailed, OutOfMemory
from ge_text.engine.adapters import AdapterCache
from ge_text.engine.figures import Tally
from ge_text.engine.plan import (
    CLEAN_BLOCK,
    BlockCopy,
    GroupPlan,
    Move,
    ShapeLists,
    Span,
    StepPlan,
    StepShapes,
    free_groups,
)
from ge_text.engine.preemption import Preemption
from ge_text.engine.runner import Runner, build_batch
from ge_text.engine.settings import PreemptionMode

BLOCK = 4


class Hungry(FakeLanguageModel):
    """Has no memory for more than one row, and tells it as an engine does.

    The error's frames hold what the step had; `held` says whether a later step found that alive.
    """

    def __init__(self, **given):
        super().__init__(**given)
        self.seen, self.held = None, []

    def step(self, batch):
        if self.seen is not None:
            self.held.append(self.seen() is not None)
        if len(batch.rows) > 1:
            try:
                self.layers()
            except RuntimeError as error:
                raise OutOfMemory("no memory") from error
        return super().step(batch)

    def layers(self):
        scores = np.zeros(1000)
        self.seen = weakref.ref(scores)
        raise RuntimeError("out of memory")


class Rig:
    def __init__(self, kind=FakeLanguageModel, **model):
        self.model = kind(block_size=4, **model)
        self.model.open_cache(40)
        self.tally = Tally()
        adapters = AdapterCache(self.model, 1000, self.tally)
        preemption = Preemption(PreemptionMode.SWAP, 99)
        self.runner = Runner(self.model, preemption, self.tally, Clock(), adapters)

    def span(self, number, prompt):
        made = sequence(number=number, prompt=prompt)
        made.blocks.extend([2 * number + 1, 2 * number + 2])
        return Span(made, 0, len(prompt))


def test_every_sequence_gets_its_token():
    """A token is drawn for each that has caught up, from its own context."""
    rig = Rig()
    spans = (rig.span(0, (5, 6)), rig.span(1, (7, 8, 9)))
    outcome = rig.runner.run(StepPlan(spans=spans))
    assert [(one.sequence, one.token) for one in outcome.drawn] == [
        (span.sequence, next_token(span.sequence.ids(0, span.stop), 0, 64)) for span in spans
    ]
    assert outcome.computed == list(spans)
    assert outcome.failed == {}
    assert outcome.model_s > 0


@pytest.mark.parametrize("culprit", range(5))
def test_a_failed_step_fails_only_who_caused_it(culprit):
    """The others are repeated in halves and get the tokens that they would have had."""
    rig = Rig()
    spans = [rig.span(n, (POISON if n == culprit else 5, 6 + n)) for n in range(5)]
    outcome = rig.runner.run(StepPlan(spans=tuple(spans)))
    assert list(outcome.failed) == [spans[culprit].sequence]
    assert isinstance(outcome.failed[spans[culprit].sequence], GraphFailed)
    others = [span for n, span in enumerate(spans) if n != culprit]
    assert {one.sequence for one in outcome.drawn} == {span.sequence for span in others}
    assert sorted(outcome.computed, key=lambda span: span.sequence.key) == others
    assert rig.tally.counts["failed_steps"] >= 2


def test_an_unforeseen_error_fails_only_who_caused_it(caplog):
    """A mistake in the sampler that one request brings out does not end the others."""

    def odd(batch):
        if any(9 in row.prompt for row in batch.rows):
            raise KeyError("odd")

    rig = Rig(on_step=odd)
    good, bad = rig.span(0, (5, 6)), rig.span(1, (9, 8))
    outcome = rig.runner.run(StepPlan(spans=(good, bad)))
    assert [one.sequence for one in outcome.drawn] == [good.sequence]
    assert str(outcome.failed[bad.sequence]).startswith("KeyError: 'odd'")
    assert "Traceback" in caplog.text


def test_a_row_without_a_token_fails_alone():
    """A row whose numbers are not finite costs its neighbours nothing, and no second step."""
    rig = Rig()
    good, bad = rig.span(0, (5, 6)), rig.span(1, (NAN, 8))
    outcome = rig.runner.run(StepPlan(spans=(good, bad)))
    assert list(outcome.failed) == [bad.sequence]
    assert [one.sequence for one in outcome.drawn] == [good.sequence]
    assert outcome.computed == [good]
    assert len(rig.model.steps) == 1


def test_a_broken_device_is_nobodys_fault():
    """A fault ends the step as a whole: repeating it would ask a dead device."""

    def broken(_batch):
        raise DeviceFault("gone")

    rig = Rig(on_step=broken)
    with pytest.raises(DeviceFault):
        rig.runner.run(StepPlan(spans=(rig.span(0, (5,)), rig.span(1, (6,)))))
    assert len(rig.model.steps) == 1


def test_blocks_go_out_before_they_are_written():
    """What is swapped out is saved as it was before the step that reuses its blocks."""
    rig = Rig()
    first = rig.span(0, (5, 6, 7))
    rig.runner.run(StepPlan(spans=(first,)))
    second = Span(sequence(number=9, prompt=(8, 9, 10)), 0, 3)
    second.sequence.blocks.append(1)
    rig.runner.run(StepPlan(spans=(second,), swapped_out=(Move(first.sequence, (1,)),)))
    rig.runner.run(StepPlan(swapped_in=(Move(first.sequence, (30,)),)))
    assert list(rig.model.tokens[120:123]) == [5, 6, 7]
    assert first.sequence.saved is None
    assert (rig.tally.counts["swapped_out"], rig.tally.counts["swapped_in"]) == (1, 1)


@pytest.mark.parametrize("verb", ["swap_out", "swap_in"])
def test_a_copy_that_fails_fails_its_own_sequence(verb, monkeypatch):
    """Host memory may run out; the step goes on with the others."""
    rig = Rig()
    moved, other = rig.span(0, (5, 6)), rig.span(1, (7, 8))
    moved.sequence.saved = rig.model.swap_out([1])

    def full(*_):
        raise OutOfMemory("no room")

    monkeypatch.setattr(rig.model, verb, full)
    move = (Move(moved.sequence, (1,)),)
    if verb == "swap_out":
        plan = StepPlan(spans=(other,), swapped_out=move)
    else:
        plan = StepPlan(spans=(moved, other), swapped_in=move)
    outcome = rig.runner.run(plan)
    assert list(outcome.failed) == [moved.sequence]
    assert [one.sequence for one in outcome.drawn] == [other.sequence]


def test_a_step_without_spans_runs_nothing():
    """There may be nothing to compute."""
    rig = Rig()
    assert rig.runner.run(StepPlan()).drawn == []
    assert rig.model.steps == []


def test_a_shape_outside_of_all_buckets_is_counted_and_told_once(caplog):
    """It runs, never silently, and the log is not flooded."""
    rig = Rig()
    rig.runner.shapes = StepShapes(ShapeLists(((1, 1, 1),), ((1, 4, 1),)), 4, lambda _: 1.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            rig.runner.run(StepPlan(spans=(rig.span(0, (5, 6)), rig.span(1, (5,) * 6))))
    assert rig.tally.counts["unplanned_groups"] == 2
    assert rig.tally.counts["padded_tokens"] == 4
    assert [record.message.count("(1, 6, 2)") for record in caplog.records] == [1]


def test_copies_are_made_before_anybody_writes():
    """The copy holds what was there before the step, and the sequence goes on in it."""
    rig = Rig()
    first = rig.span(0, (5, 6))
    rig.runner.run(StepPlan(spans=(first,)))
    twin = sequence(number=1, prompt=(5, 6, 9))
    twin.num_computed = 2
    twin.blocks.append(8)
    first.sequence.append(7)
    spans = (Span(first.sequence, 2, 1), Span(twin, 2, 1))
    outcome = rig.runner.run(StepPlan(spans=spans, copies=(BlockCopy(twin, 1, 8),)))
    assert [one.token for one in outcome.drawn] == [
        next_token(tokens, 0, 64) for tokens in ((5, 6, 7), (5, 6, 9))
    ]
    assert rig.tally.counts["copied_blocks"] == 1


def test_cleaning_a_block_is_no_copy_of_a_text():
    """It gets what is in block 0, and the figure of copies does not count it."""
    rig = Rig()
    span = rig.span(0, (5, 6))
    rig.model.tokens[:] = 9
    rig.model.tokens[:4] = 0
    plan = StepPlan(spans=(span,), copies=(BlockCopy(span.sequence, CLEAN_BLOCK, 1),))
    rig.runner.run(plan)
    assert rig.model.tokens[4:9].tolist() == [5, 6, 0, 0, 9]
    assert rig.tally.counts["copied_blocks"] == 0


def test_a_failed_copy_fails_only_those_who_wanted_one():
    """Whoever reads the block still has it."""
    rig = Rig()

    def full(_pairs):
        raise OutOfMemory("no room")

    rig.model.copy_blocks = full
    first, other = rig.span(0, (5, 6)), rig.span(1, (5, 6))
    outcome = rig.runner.run(
        StepPlan(spans=(first, other), copies=(BlockCopy(other.sequence, 1, 3),))
    )
    assert list(outcome.failed) == [other.sequence]
    assert [one.sequence for one in outcome.drawn] == [first.sequence]


@pytest.mark.parametrize(("bad", "kept"), [(0, None), (1, 0), (2, 1), (3, 2)])
def test_a_place_that_failed_behind_right_drafts_is_left_to_the_next_step(bad, kept):
    """What was drawn before it counts; only a failure at the sequence's own place is its end."""
    rig = Rig()
    span = rig.span(0, (5, 6))
    known, drafts = [5, 6], []
    for _ in range(3):
        drafts.append(next_token([*known, *drafts], 0, 64))
    step = rig.model.step

    def failing(batch):
        drawn = step(batch)
        return replace(drawn, failed={bad: GraphFailed("not a number")})

    rig.model.step = failing
    outcome = rig.runner.run(StepPlan(spans=(span.with_drafts(tuple(drafts)),)))
    if kept is None:
        assert list(outcome.failed) == [span.sequence]
    else:
        assert outcome.failed == {}
        assert [one.token for one in outcome.drawn] == drafts[: kept + 1]
        assert outcome.computed == [span.with_drafts(tuple(drafts[:kept]))]


def test_a_step_without_memory_is_repeated_without_what_it_had():
    """Its halves may fit into what it gives back."""
    rig = Rig(Hungry)
    spans = (rig.span(0, (5, 6)), rig.span(1, (7, 8, 9)))
    gc.disable()
    try:
        outcome = rig.runner.run(StepPlan(spans=spans))
    finally:
        gc.enable()
    assert len(outcome.drawn) == 2
    assert rig.model.held == [False, False]


def placed(blocks, start, count, tokens):
    made = sequence(prompt=tokens)
    made.blocks.extend(blocks)
    return Span(made, start, count)


def test_tokens_lie_where_their_blocks_are():
    """Slots follow the block table, positions the sequence, and groups each other."""
    decode = placed([7, 3], 5, 1, (10, 11, 12, 13, 14, 15))
    chunk = placed([2, 9], 2, 4, (20, 21, 22, 23, 24, 25, 26))
    built = build_batch(free_groups([chunk, decode], BLOCK), BLOCK)
    batch = built.batch
    np.testing.assert_array_equal(batch.ids, [15, 22, 23, 24, 25])
    np.testing.assert_array_equal(batch.positions, [5, 2, 3, 4, 5])
    np.testing.assert_array_equal(batch.slots, [3 * 4 + 1, 2 * 4 + 2, 2 * 4 + 3, 9 * 4, 9 * 4 + 1])
    assert [(group.rows, group.query) for group in batch.groups] == [(1, 1), (1, 4)]
    np.testing.assert_array_equal(batch.groups[0].tables, [[7, 3]])
    np.testing.assert_array_equal(batch.groups[1].lengths, [6])


def test_only_who_has_caught_up_draws_a_token():
    """A chunk in the middle of a prompt draws nothing; its last chunk draws from its last token."""
    middle = placed([2, 9], 2, 4, (20, 21, 22, 23, 24, 25, 26))
    last = placed([5, 6], 4, 3, (30, 31, 32, 33, 34, 35, 36))
    built = build_batch(free_groups([middle, last], BLOCK), BLOCK)
    assert built.drawn == (last,)
    np.testing.assert_array_equal(built.batch.sampled, [6])
    assert built.batch.ids[6] == 36
    assert built.batch.rows[0].position == 7


def test_drafts_stand_behind_the_known_tokens_and_each_draws_one_more():
    """Every place of a run is drawn as if the drafts before it were the text."""
    span = placed([7, 3], 5, 1, (10, 11, 12, 13, 14, 15)).with_drafts((8, 9))
    other = placed([2], 2, 1, (20, 21, 22))
    built = build_batch(free_groups([span, other], BLOCK), BLOCK)
    batch = built.batch
    np.testing.assert_array_equal(batch.ids, [15, 8, 9, 22])
    np.testing.assert_array_equal(batch.positions, [5, 6, 7, 2])
    np.testing.assert_array_equal(batch.slots, [3 * 4 + 1, 3 * 4 + 2, 3 * 4 + 3, 2 * 4 + 2])
    np.testing.assert_array_equal(batch.sampled, [0, 1, 2, 3])
    assert built.drawn == (span, other)
    assert [row.position for row in batch.rows] == [6, 7, 8, 3]
    assert [row.output.tolist() for row in batch.rows] == [[], [8], [8, 9], []]
    assert batch.groups[0].lengths.tolist() == [8]


def test_padding_points_at_nobodys_block():
    """Rows and tokens of padding have position 0, a slot of block 0 and no length."""
    span = placed([2], 0, 3, (20, 21, 22))
    built = build_batch([GroupPlan((span,), (2, 4, 2))], BLOCK)
    batch = built.batch
    np.testing.assert_array_equal(batch.ids, [20, 21, 22, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(batch.positions, [0, 1, 2, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(batch.slots, [8, 9, 10, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(batch.groups[0].tables, [[2, 0], [0, 0]])
    np.testing.assert_array_equal(batch.groups[0].lengths, [3, 0])
    np.testing.assert_array_equal(batch.sampled, [2])


def test_blocks_beyond_the_shape_are_left_out():
    """A sequence may have more blocks than the tokens of this step need."""
    span = placed([2, 5, 6], 0, 3, (20, 21, 22))
    batch = build_batch([GroupPlan((span,), (1, 3, 1))], BLOCK).batch
    np.testing.assert_array_equal(batch.groups[0].tables, [[2]])
