"""The one rule: computed catches up with known, under a budget, in order, and nobody is forgotten."""

import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.generation import Optimist, sequence
from builders.integrity import block_defects
from ge_text.engine.blocks import BlockPool, PrefixCache
from ge_text.engine.preemption import Preemption
from ge_text.engine.scheduler import Scheduler
from ge_text.engine.sequence import SequenceState
from ge_text.engine.settings import PreemptionMode


@dataclass
class Rig:
    """A scheduler, and a stand-in for the model: tokens are drawn out of thin air."""

    blocks: int = 20
    block_size: int = 4
    max_tokens: int = 16
    max_seqs: int = 8
    mode: PreemptionMode = PreemptionMode.RECOMPUTE
    swap_blocks: int = 0
    optimist: bool = False
    prefix_cache: bool = False
    cache: dict = field(default_factory=lambda: {0: {}})
    saved: dict = field(default_factory=dict)
    made: list = field(default_factory=list)
    lengths: dict = field(default_factory=dict)

    def __post_init__(self):
        self.pool = BlockPool(self.blocks + 1, self.block_size)
        self.scheduler = Scheduler(
            self.pool,
            PrefixCache(self.pool, on=self.prefix_cache),
            Preemption(self.mode, self.swap_blocks),
            max_tokens=self.max_tokens,
            max_seqs=self.max_seqs,
        )
        if self.optimist:
            self.scheduler.forecast = Optimist()

    def add(self, prompt=4, output=4, *, at_s=None, ends_after=None, text=None):
        """Let a sequence come; it has `output` tokens at most and really `ends_after`."""
        number = len(self.made)
        made = sequence(
            number=number,
            at_s=float(number) if at_s is None else at_s,
            prompt=text or (1,) * prompt,
            max_output=output,
        )
        self.made.append(made)
        self.lengths[made] = min(output, ends_after or output)
        self.scheduler.add(made)
        return made

    def decoding(self):
        """Return those that are about to get their next token, while there is a seat for a fork."""
        running = self.scheduler.running
        ready = [one for one in running if one.num_tokens - one.num_computed == 1]
        return ready if len(running) < self.max_seqs else []

    def fork(self, parent, ends_after=None):
        """Let a sequence go on in two ways."""
        made = parent.fork()
        self.scheduler.fork(parent, made)
        self.made.append(made)
        self.lengths[made] = max(parent.num_output + 1, min(parent.max_output, ends_after or 99))
        return made

    def plan(self, chunk=1000, drafts=0):
        """Plan a step and check all that has to hold of any.

        Args:
            chunk: for those who lack more than one token.
            drafts: so many are there for each that runs, whether it can have them or not.
        """
        scheduler = self.scheduler
        before = {one: one.num_computed for one in self.made}
        decoding = {s for s in scheduler.running if s.num_tokens - s.num_computed == 1}
        were_running = list(scheduler.running)
        plan = scheduler.schedule(chunk, dict.fromkeys(scheduler.running, (2,) * drafts))
        left = [move.sequence for move in plan.swapped_out] + list(plan.recomputed)
        came_in = {move.sequence for move in plan.swapped_in}
        planned = [span.sequence for span in plan.spans]

        assert plan.num_tokens <= self.max_tokens
        assert sum(s.count for s in plan.spans if _lacked(s) > 1) <= chunk
        assert all(len(s.drafts) <= (drafts if _lacked(s) == 1 else 0) for s in plan.spans)
        assert len(set(planned)) == len(planned) <= self.max_seqs
        assert len(scheduler.running) <= self.max_seqs
        assert not set(planned) & set(left)
        assert decoding - set(left) <= set(planned)
        joined = [one for one in planned if one not in were_running]
        assert not (joined and left)
        assert came_in <= set(joined)
        waiting = list(scheduler.waiting)
        assert waiting == sorted(waiting, key=lambda one: one.key)
        assert scheduler.running == sorted(scheduler.running, key=lambda one: one.key)
        assert all(one.key < other.key for one in joined for other in waiting)
        assert all(not one.blocks for one in waiting)
        assert block_defects(self.pool, (one.blocks for one in scheduler.running)) == []
        assert planned or not (scheduler.running or waiting), "nobody gets anything"

        for span in plan.spans:
            start = span.start
            assert start == span.sequence.num_computed
            assert start == before[span.sequence] or span.sequence in joined
            assert span.count >= 1
            assert span.start + span.known <= span.sequence.num_tokens
            assert span.stop <= len(span.sequence.blocks) * self.block_size
            written = span.sequence.blocks[start // self.block_size :]
            assert all(self.pool.references(block) == 1 for block in written)
            assert not self.pool._labels.keys() & set(written)
        return plan

    def write(self, plan, done):
        """Keep what the step writes; check that each reads the keys of its own tokens alone."""
        for move in plan.swapped_out:
            self.saved[move.sequence] = [dict(self.cache[block]) for block in move.blocks]
        for move in plan.swapped_in:
            self.cache.update(zip(move.blocks, self.saved.pop(move.sequence), strict=True))
        sources = {copy.destination: dict(self.cache[copy.source]) for copy in plan.copies}
        assert len(sources) == len(plan.copies)
        self.cache.update(sources)
        for span in plan.spans:
            known = span.start + span.known
            tokens = [*span.sequence.ids(0, known).tolist(), *span.drafts]
            for place in range(span.stop):
                block, offset = divmod(place, self.block_size)
                keys = self.cache.setdefault(span.sequence.blocks[block], {})
                if place < span.start:
                    assert keys[offset] == tuple(tokens[: place + 1])
                else:
                    keys[offset] = tuple(tokens[: place + 1]) if span.sequence in done else None

    def step(self, chunk=1000, fails=(), drafts=0, right=0):
        """Plan a step and let it happen, but for the spans at the places in `fails`.

        Of the drafts of each, at most the first `right` ones are.
        """
        plan = self.plan(chunk, drafts)
        done = [
            span.with_drafts(span.drafts[: min(right, self.lengths[span.sequence])])
            for place, span in enumerate(plan.spans)
            if place not in fails
        ]
        self.write(plan, {span.sequence for span in done})
        self.scheduler.advance(done)
        for span in done:
            one = span.sequence
            assert len(one.blocks) == self.pool.blocks_for(one.num_computed)
            if one.num_computed >= one.num_tokens:
                for token in (*span.drafts, 1):
                    one.append(token)
                if one.num_output >= self.lengths[one]:
                    self.scheduler.forecast.observe(one)
                    self.scheduler.remove(one)
        return plan

    def run(self, chunk=1000, most=2000):
        """Step until all have ended; then everything is free."""
        plans = []
        while self.scheduler.running or self.scheduler.waiting:
            plans.append(self.step(chunk))
            assert len(plans) < most, "it does not come to an end"
        assert all(one.state is SequenceState.FINISHED for one in self.made)
        assert self.pool.num_used == 0
        assert block_defects(self.pool, []) == []
        return plans


def _lacked(span):
    return span.sequence.num_tokens - span.start


def spans(plan):
    return [(span.sequence.key[1], span.start, span.count) for span in plan.spans]


def computed(plans, one):
    return [
        (span.start, span.count) for plan in plans for span in plan.spans if span.sequence is one
    ]


@st.composite
def rigs(draw):
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    max_seqs = draw(st.integers(1, 6))
    return Rig(
        blocks=-(-40 // block_size) + draw(st.integers(0, 20)),
        block_size=block_size,
        max_tokens=draw(st.integers(max_seqs, 40)),
        max_seqs=max_seqs,
        mode=draw(st.sampled_from(PreemptionMode)),
        swap_blocks=draw(st.sampled_from([0, 5, 100])),
        optimist=draw(st.booleans()),
        prefix_cache=draw(st.booleans()),
    )


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "step", "step", "follow", "fork", "fail", "remove"]),
        st.integers(1, 30),
        st.integers(1, 11),
        st.integers(1, 11),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(rigs(), ACTIONS, st.integers(1, 40))
def test_whatever_comes_every_step_is_sound_and_everybody_ends(rig, actions, chunk):
    """Budget, order, one owner per written block, and free + kept + used = all hold at every step.

    Whatever is shared or found, each reads keys of its own text; some texts have a beginning or all
    in common.
    """
    for verb, prompt, output, other in actions:
        if verb == "add":
            text = (*(1,) * (prompt // 2), *(other % 3,) * (prompt - prompt // 2))
            rig.add(text=text, output=output, at_s=float(other), ends_after=other)
        elif verb == "follow" and (running := rig.scheduler.running):
            leader = running[prompt % len(running)]
            text = leader.ids(0, leader.num_prompt).tolist()
            follower = rig.add(text=text, output=output, at_s=float(other), ends_after=other)
            follower.leader = leader
        elif verb == "fork" and (ready := rig.decoding()):
            rig.fork(ready[prompt % len(ready)], ends_after=other)
        elif verb == "remove" and rig.made:
            victim = rig.made[prompt % len(rig.made)]
            if victim.state is not SequenceState.FINISHED:
                rig.scheduler.remove(victim)
        else:
            rig.step(chunk, (other % 3,) if verb == "fail" else (), drafts=prompt % 7, right=output)
    rig.run(chunk)


def test_a_prompt_is_computed_once_and_each_token_after_it():
    """The last prompt token draws the first token; it is not computed a second time."""
    rig = Rig()
    one = rig.add(prompt=6, output=3)
    assert computed(rig.run(), one) == [(0, 6), (6, 1), (7, 1)]


def test_a_prompt_beyond_the_budget_goes_in_pieces_and_blocks_nobody():
    """A request larger than a step's tokens takes several steps; each piece is what is left."""
    rig = Rig(max_tokens=10, max_seqs=4)
    small, large = rig.add(prompt=3, output=9), rig.add(prompt=25, output=2)
    plans = rig.run()
    assert computed(plans, large)[:3] == [(0, 7), (7, 9), (16, 9)]
    assert len(computed(plans, small)) == 9


def test_a_chunk_bounds_all_prompts_of_a_step_and_no_decoding():
    """Prompts share the chunk in their order; who waits for a next token is always served."""
    rig = Rig(max_tokens=32)
    rig.add(prompt=4, output=9)
    rig.step()
    rig.add(prompt=7, output=2)
    rig.add(prompt=9, output=2)
    assert spans(rig.step(chunk=10)) == [(0, 4, 1), (1, 0, 7), (2, 0, 3)]
    assert spans(rig.step(chunk=10)) == [(0, 5, 1), (1, 7, 1), (2, 3, 6)]


def test_newcomers_are_those_that_a_larger_chunk_would_help():
    """Whoever has part of a prompt before it, and of those that wait as many as may join."""
    rig = Rig(max_seqs=3, max_tokens=6)
    for _ in range(5):
        rig.add(prompt=4, output=8)
    assert rig.scheduler.num_lacking == (0, 3)
    rig.step()
    assert rig.scheduler.num_lacking == (1, 2)
    rig.step()
    rig.step()
    assert rig.scheduler.num_lacking == (3, 0)


def test_every_chunk_has_its_blocks():
    """Blocks come with the tokens, for the last chunk as for the first."""
    rig = Rig(blocks=8, block_size=4)
    one = rig.add(prompt=30, output=3)
    for stop in (10, 20, 30):
        rig.step(chunk=10)
        assert one.num_computed == stop
        assert len(one.blocks) == rig.pool.blocks_for(stop)


def test_a_short_budget_makes_nobody_leave():
    """Who gets no tokens in a step waits a turn and keeps what was computed."""
    rig = Rig(max_tokens=8, max_seqs=4)
    for _ in range(3):
        rig.add(prompt=12, output=2)
    plans = rig.run()
    assert not any(plan.recomputed for plan in plans)
    assert sum(plan.num_tokens for plan in plans) == 3 * 13


def test_requests_run_side_by_side_though_their_maxima_do_not_fit():
    """Blocks are not set aside for the longest possible output."""
    rig = Rig(blocks=12, block_size=4, max_tokens=64)
    rig.add(prompt=20, output=2)
    rig.add(prompt=4, output=24)
    assert len(rig.step().spans) == 2
    assert not any(plan.recomputed for plan in rig.run())


def test_room_is_counted_back_when_sequences_end():
    """A thousand requests one after another find the room of the first."""
    rig = Rig(blocks=3, block_size=4, max_seqs=1)
    for _ in range(1000):
        rig.add(prompt=8, output=2)
    assert len(rig.run(most=2001)) == 2000


def test_nobody_joins_who_would_not_fit_to_the_end():
    """While everybody uses up the limit nobody has to leave: the peak is foreseen."""
    rig = Rig(blocks=10, block_size=4, max_tokens=64)
    for _ in range(6):
        rig.add(prompt=4, output=20)
    assert not any(plan.recomputed for plan in rig.run())


def crowded(first=8, last=7, output=16, ends_after=None, **given):
    """Let two run that cannot both stay; return the rig, the two, and the step in which it shows."""
    rig = Rig(blocks=6, block_size=4, optimist=True, **given)
    one = rig.add(prompt=first, output=output, ends_after=ends_after)
    two = rig.add(prompt=last, output=output)
    for _ in range(5):
        plan = rig.step()
        assert not plan.recomputed
        assert not plan.swapped_out
    assert rig.scheduler.running == [one, two]
    return rig, one, two


def test_without_a_block_the_last_in_the_order_leaves_and_the_asker_goes_on():
    """One step suffices: who leaves frees what the asker gets in the same step."""
    rig, _, last = crowded()
    plan = rig.step()
    assert plan.recomputed == (last,)
    assert spans(plan) == [(0, 12, 1)]
    assert (last.state, last.num_computed, list(last.blocks)) == (SequenceState.WAITING, 0, [])
    rig.run()


def test_who_lacks_a_block_and_is_last_leaves_himself():
    """Those before keep theirs; he comes back when there is room."""
    rig, first, last = crowded(first=5, last=8)
    plan = rig.step()
    assert plan.recomputed == (last,)
    assert spans(plan) == [(0, 9, 1)]
    assert first.state is SequenceState.RUNNING
    rig.run()


def test_nobody_joins_in_a_step_in_which_somebody_left():
    """Else a swap could be undone in the step that made it."""
    rig, _, last = crowded(mode=PreemptionMode.SWAP, swap_blocks=9)
    urgent = rig.add(prompt=1, output=2, at_s=-1.0)
    plan = rig.step()
    assert [(move.sequence, len(move.blocks)) for move in plan.swapped_out] == [(last, 3)]
    assert plan.swapped_in == ()
    assert spans(plan) == [(0, 12, 1)]
    assert computed([rig.step()], urgent) == [(0, 1)]


def test_host_memory_is_free_again_when_its_sequence_is_back():
    """What was copied in may be used for the next one that has to leave."""
    rig, _, last = crowded(ends_after=8, mode=PreemptionMode.SWAP, swap_blocks=3)
    while not rig.step().swapped_in:
        assert rig.scheduler.waiting
    assert last.swapped == 0
    assert rig.scheduler._preemption.swaps(last, 3)
    rig.run()


def test_whoever_has_to_leave_makes_the_scheduler_careful_again():
    """Lengths were taken for too short: twice as many tokens are expected from then on, up to the limit."""
    rig = Rig(blocks=6, block_size=4)
    for _ in range(200):
        rig.scheduler.forecast.observe(sequence(given=(1,), max_output=16))
    one, two = (rig.add(prompt=7, output=16) for _ in range(2))
    fresh = sequence(max_output=16)
    assert rig.scheduler.forecast.remaining(fresh) == 1
    while not (plan := rig.step()).recomputed:
        assert rig.scheduler.forecast.remaining(fresh) == 1
    assert plan.recomputed == (two,)
    assert one.state is SequenceState.RUNNING
    assert rig.scheduler.forecast.remaining(fresh) == 2
    assert sum(bool(plan.recomputed) for plan in rig.run()) == 0


def test_a_swapped_sequence_comes_back_with_a_slot_for_its_next_token():
    """It goes on where it was: nothing is computed twice, and its next token has its place."""
    rig, _, last = crowded(last=8, ends_after=8, mode=PreemptionMode.SWAP, swap_blocks=9)
    plans = rig.run()
    ((move, back),) = [(plan.swapped_in[0], plan) for plan in plans if plan.swapped_in]
    assert move.sequence is last
    assert len(move.blocks) == 3
    assert computed([back], last) == [(12, 1)]
    starts = [start for start, _ in computed(plans, last)]
    assert starts == list(range(12, 23))


def test_swapping_without_room_is_recomputing():
    """Host memory is bounded; what finds no room there starts over."""
    rig, _, last = crowded(mode=PreemptionMode.SWAP, swap_blocks=2)
    plan = rig.step()
    assert (plan.swapped_out, plan.recomputed) == ((), (last,))


def test_host_memory_is_given_back_when_a_swapped_sequence_is_cancelled():
    """Cancelling leaves nothing behind, wherever the sequence was."""
    rig, first, last = crowded(mode=PreemptionMode.SWAP, swap_blocks=3)
    assert rig.step().swapped_out
    assert not rig.scheduler._preemption.swaps(first, 1)
    rig.scheduler.remove(last)
    assert rig.scheduler._preemption.swaps(first, 3)
    rig.scheduler.remove(first)
    assert (rig.pool.num_used, last.saved, last.swapped) == (0, None, 0)


def test_a_swapped_sequence_that_is_cancelled_leaves_nothing_for_others():
    """What it computed lies in host memory, where no other text finds it."""
    rig = Rig(blocks=6, optimist=True, mode=PreemptionMode.SWAP, swap_blocks=3, prefix_cache=True)
    first = rig.add(text=tuple(range(10, 18)), output=16)
    last = rig.add(text=tuple(range(20, 27)), output=16)
    while not rig.step().swapped_out:
        assert last.num_output < last.max_output
    rig.scheduler.remove(last)
    rig.scheduler.remove(first)
    assert (rig.pool.num_used, last.saved, last.swapped) == (0, None, 0)


def test_a_preempted_sequence_computes_its_own_output_again():
    """What was drawn stays drawn: it is known, and only has to be in the cache again."""
    rig, _, last = crowded(ends_after=8)
    known = last.num_tokens
    plans = rig.run()
    assert (0, known) in computed(plans, last)
    assert last.num_output == 16


def test_small_ones_do_not_overtake_a_large_one_for_ever():
    """Who is first and does not fit yet is waited for: an endless stream of small ones ends."""
    rig = Rig(blocks=10, block_size=4, max_tokens=64)
    rig.add(prompt=16, output=8)
    rig.step()
    large = rig.add(prompt=36, output=4)
    for _ in range(20):
        rig.add(prompt=4, output=4)
        rig.step()
        if large.state is not SequenceState.WAITING:
            break
    assert large.state is SequenceState.RUNNING
    assert all(one.num_computed == 0 for one in rig.made[2:])


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_planning_for_256_sequences_costs_next_to_nothing(prefix_cache):
    """A step takes tens of milliseconds on the device; to plan it must not take one of them.

    Bounded at ten times what it takes, in this thread's own time, so that a busy machine passes.
    """
    rig = Rig(
        blocks=256 * 32,
        block_size=16,
        max_tokens=256 * 300,
        max_seqs=256,
        prefix_cache=prefix_cache,
    )
    for number in range(260):
        rig.add(text=(number,) * 300, output=150)
    rig.step(chunk=10**6)
    seconds = []
    for _ in range(20):
        begun = time.thread_time()
        plan = rig.scheduler.schedule(10**6)
        seconds.append(time.thread_time() - begun)
        assert len(plan.spans) == 256
        rig.scheduler.advance(plan.spans)
        for span in plan.spans:
            span.sequence.append(1)
    assert sorted(seconds)[10] < 0.005


def test_drafts_get_the_tokens_that_are_left():
    """Next tokens and prompts come first, and blocks behind wrong drafts are given back."""
    rig = Rig(blocks=8, block_size=4, max_tokens=10, max_seqs=4, optimist=True)
    one, two = rig.add(prompt=4, output=9), rig.add(prompt=4, output=9)
    rig.step()
    assert spans(rig.step(drafts=9, right=2)) == [(0, 4, 9), (1, 4, 1)]
    assert (one.num_computed, one.num_tokens, len(one.blocks)) == (7, 8, 2)
    rig.add(prompt=6, output=9)
    assert spans(rig.step(drafts=9, right=0)) == [(0, 7, 3), (1, 5, 1), (2, 0, 6)]
    assert (one.num_computed, len(one.blocks), len(two.blocks)) == (8, 2, 2)


def test_drafts_get_the_blocks_that_are_free():
    """Nobody has to leave for a draft; who finds no free block fills his own."""
    rig = Rig(blocks=5, block_size=4, max_tokens=40, optimist=True)
    rig.add(prompt=4, output=9)
    rig.add(prompt=4, output=9)
    rig.step()
    plan = rig.step(drafts=20)
    assert spans(plan) == [(0, 4, 8), (1, 4, 4)]
    assert not plan.recomputed
    assert rig.pool.num_free == 1


def test_the_same_requests_make_the_same_plans():
    """Nothing depends on the order of a map."""

    def plans():
        rig = Rig(optimist=True, blocks=9)
        for number in range(12):
            rig.add(prompt=3 + number % 5, output=2 + number % 7)
        return [spans(plan) for plan in rig.run()]

    assert plans() == plans()


@pytest.mark.parametrize(
    ("prompt", "ready", "start"), [(10, 0, 0), (10, 3, 3), (10, 4, 4), (10, 10, 9), (8, 8, 7)]
)
def test_a_follower_shares_the_blocks_of_its_leader(prompt, ready, start):
    """Samples of one prompt share what is computed of it, but for the token that draws the next.

    The block that is not full, and in which both go on, is copied for the one that comes.
    """
    rig = Rig(max_tokens=40)
    leader = rig.add(prompt=prompt, output=6)
    rig.step(chunk=ready or 1)
    follower = rig.add(prompt=prompt, output=6)
    follower.leader = leader if ready else None
    plan = rig.step()
    assert computed([plan], follower) == [(start, prompt - start)]
    assert list(follower.blocks[: start // 4]) == list(leader.blocks[: start // 4])
    copies = [(copy.sequence, copy.source, copy.destination) for copy in plan.copies]
    place = start // 4
    copied = [(follower, leader.blocks[place], follower.blocks[place])] if start % 4 else []
    assert copies == copied
    rig.run()


def test_the_last_reader_of_a_block_writes_without_a_copy():
    """A copy is for others that read the block; where they have left there is nothing to copy."""
    rig = Rig(max_tokens=40, prefix_cache=True)
    leader = rig.add(prompt=6, output=6)
    rig.step()
    follower = rig.add(prompt=6, output=6)
    follower.leader = leader
    rig.scheduler.remove(leader)
    plan = rig.step()
    assert (computed([plan], follower), plan.copies) == ([(4, 2)], ())
    rig.run()


def test_a_follower_of_nobody_computes_everything_itself():
    """A leader that has left has no blocks to share."""
    rig = Rig()
    leader = rig.add(prompt=8, output=6)
    rig.step()
    rig.scheduler.remove(leader)
    follower = rig.add(prompt=8, output=6)
    follower.leader = leader
    assert computed([rig.step()], follower) == [(0, 8)]


def test_a_beginning_that_was_computed_is_not_computed_again():
    """Whoever comes later takes full blocks of those that run and of those that have ended."""
    rig = Rig(prefix_cache=True, max_tokens=40)
    first = rig.add(prompt=10, output=6)
    rig.step()
    second = rig.add(prompt=10, output=6)
    assert computed([rig.step()], second) == [(8, 2)]
    assert second.blocks[:2] == first.blocks[:2]
    rig.run()
    third = rig.add(prompt=13, output=1)
    assert computed(rig.run(), third) == [(12, 1)]


def test_who_comes_with_the_same_beginning_waits_for_the_first_to_compute_it():
    """Together or in the midst of it: each block is computed once."""
    rig = Rig(prefix_cache=True, max_tokens=40, blocks=60)
    several = [rig.add(text=(*(1,) * 16, number), output=3) for number in range(2, 7)]
    plans = rig.run()
    assert computed(plans, several[0])[0] == (0, 17)
    assert [computed(plans, one)[0] for one in several[1:]] == [(16, 1)] * 4
    assert len(plans) == 4
    first = rig.add(text=(9,) * 17, output=1)
    rig.step(chunk=6)
    late = rig.add(text=(*(9,) * 12, 8), output=1)
    plans = rig.run(chunk=6)
    assert (computed(plans, first), computed(plans, late)) == ([(6, 6), (12, 5)], [(12, 1)])


def test_nobody_waits_for_what_will_not_come():
    """Whoever computes the beginning may leave or fail; then the next one computes it."""
    rig = Rig(prefix_cache=True, max_tokens=40)
    first = rig.add(prompt=10, output=6)
    rig.add(prompt=10, output=6)
    assert spans(rig.step(chunk=5)) == [(0, 0, 5)]
    rig.scheduler.remove(first, failed=True)
    assert spans(rig.step()) == [(1, 0, 10)]
    rig.run()


def test_what_a_failed_sequence_computed_is_for_nobody():
    """Its keys may be why it failed; what others share of it meanwhile stays theirs."""
    rig = Rig(prefix_cache=True, max_tokens=40)
    first = rig.add(prompt=10, output=6)
    rig.step()
    rig.step()
    rig.scheduler.remove(first, failed=True)
    assert rig.pool.num_kept == 0
    second = rig.add(prompt=10, output=2)
    assert computed(rig.run(), second)[0] == (0, 10)


@pytest.mark.parametrize("end", ["failed", "cancelled", "cancelled late"])
def test_blocks_that_may_hold_no_numbers_are_cleaned_for_whoever_gets_them(end):
    """Those of a text that failed, or from which no token has been drawn yet; and no others."""
    rig = Rig(blocks=4, max_tokens=40)
    one = rig.add(prompt=8, output=6)
    rig.step(chunk=7 if end == "cancelled" else 8)
    held = set(one.blocks)
    rig.scheduler.remove(one, failed=end == "failed")
    other = rig.add(prompt=15, output=1)
    plan = rig.step()
    expected = set() if end == "cancelled late" else {(other, 0, block) for block in held}
    assert {(c.sequence, c.source, c.destination) for c in plan.copies} == expected


def test_who_had_to_leave_amid_its_prompt_leaves_blocks_to_be_cleaned():
    """In the very step in which another one gets them."""
    rig = Rig(blocks=6, max_tokens=40, optimist=True)
    first = rig.add(prompt=4, output=12)
    late = rig.add(prompt=11, output=4)
    plan, held = rig.step(chunk=5), ()
    while not plan.recomputed:
        held = set(late.blocks)
        plan = rig.step(chunk=1)
    assert plan.recomputed == (late,)
    assert [(c.sequence, c.source) for c in plan.copies] == [(first, 0)]
    assert plan.copies[0].destination in held
    rig.run()


def test_what_others_read_is_cleaned_when_the_last_of_them_has_failed():
    """And once: who has got it clean writes to it, and leaves numbers."""
    rig = Rig(blocks=4, max_tokens=40)
    one = rig.add(prompt=6, output=6)
    rig.step()
    two, held = rig.fork(one), set(one.blocks)
    rig.scheduler.remove(one, failed=True)
    rig.scheduler.remove(two, failed=True)
    third = rig.add(prompt=16, output=1)
    plan = rig.step()
    assert {copy.destination for copy in plan.copies} == held
    assert third.proven
    rig.run()
    rig.add(prompt=16, output=1)
    assert rig.step().copies == ()


def test_who_had_to_leave_is_found_again_when_it_has_come_back():
    """What was evicted meanwhile is computed again, and labelled again."""
    rig = Rig(blocks=6, block_size=4, optimist=True, prefix_cache=True)
    rig.add(text=(2,) * 8, output=16)
    last = rig.add(text=(3,) * 7, output=16)
    while not rig.step().recomputed:
        assert last.state is SequenceState.RUNNING
    rig.run()
    twin = rig.add(text=last.ids(0, last.num_tokens).tolist(), output=1)
    ((start, _),) = computed(rig.run(), twin)
    assert start == (last.num_tokens - 1) // 4 * 4


def test_kept_blocks_are_room_for_everybody():
    """They are evicted, and nobody has to leave or wait because of them."""
    rig = Rig(prefix_cache=True, blocks=10, max_tokens=40)
    for number in range(30):
        rig.add(text=(number + 2,) * 9, output=3)
    plans = rig.run()
    assert not any(plan.recomputed for plan in plans)
    assert rig.pool.evicted > 0
    assert rig.pool.num_kept + len(rig.pool._free) == rig.pool.capacity


def test_forks_share_blocks_until_they_write():
    """The one that writes first gets a copy of the block; the last one writes where it was."""
    rig = Rig(max_tokens=40)
    one = rig.add(prompt=6, output=6)
    rig.step()
    two, three = rig.fork(one), rig.fork(one)
    assert two.blocks == three.blocks == one.blocks
    plan = rig.step()
    assert [copy.source for copy in plan.copies] == [plan.copies[0].source] * 2
    assert len({one.blocks[1], two.blocks[1], three.blocks[1]}) == 3
    assert one.blocks[0] == two.blocks[0] == three.blocks[0]
    rig.run()


def test_a_fork_outlives_whom_it_came_from():
    """It reads the blocks of one that leaves, and all is free when it has failed."""
    rig = Rig(blocks=3, max_tokens=40)
    one, next_one = rig.add(prompt=6, output=6), sequence(number=9, prompt=(1,) * 4)
    rig.step()
    held, two = list(one.blocks), one.fork()
    rig.scheduler.fork(one, two)
    rig.scheduler.remove(one)
    rig.scheduler.add(next_one)
    assert (one.state, list(two.blocks)) == (SequenceState.FINISHED, held)
    assert (rig.scheduler.running, rig.scheduler.waiting) == ([two], [next_one])
    for failed in (two, next_one):
        rig.scheduler.remove(failed, failed=True)
    assert rig.pool.num_free == rig.pool.capacity
    assert (rig.scheduler.running, rig.scheduler.waiting) == ([], [])


def test_a_copy_needs_a_block_like_any_other():
    """Where none is free somebody has to leave; the one that is left writes without a copy."""
    rig = Rig(blocks=3, block_size=4, optimist=True)
    one = rig.add(prompt=9, output=3)
    rig.step()
    two = rig.fork(one)
    plan = rig.step()
    assert plan.recomputed == (two,)
    assert (plan.copies, computed([plan], one)) == ((), [(9, 1)])
    rig.run()


def test_a_fork_of_a_labelled_block_takes_the_label_off():
    """What is written to again is no longer what was found there."""
    rig = Rig(max_tokens=40, prefix_cache=True)
    one = rig.add(prompt=8, output=3)
    rig.step()
    two = rig.fork(one)
    two.num_computed = 7
    rig.scheduler.remove(one)
    assert rig.pool._labels
    plan = rig.scheduler.schedule(100)
    assert plan.copies == ()
    assert two.blocks[1] not in rig.pool._labels


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans())))
def test_the_queue_is_sorted_whatever_comes_and_goes(actions):
    """The first is always the smallest key, and removing takes out that one only."""
    rig, there = Rig(), []
    for number, (at_s, remove) in enumerate(actions):
        if remove and there:
            rig.scheduler.remove(there.pop(at_s % len(there)))
        else:
            there.append(sequence(number=number, at_s=float(at_s)))
            rig.scheduler.add(there[-1])
        ordered = sorted(there, key=lambda one: one.key)
        assert rig.scheduler.waiting == ordered
