"""The one rule: every step, computed catches up with known, under a budget of tokens.

There is no phase of prompts and none of output. A sequence lacks as many tokens as it has known
ones that are not in the cache: a whole prompt when it is new, one when it waits for its next token,
everything after it had to start over. A step first serves those that run, in their order, and then
lets waiting ones join; none joins in a step in which one had to leave.

    who lacks one token      always gets it: a step has room for one of each
    who lacks more           gets what budget and chunk leave over, at least nothing: its turn comes
    no block is free         the last in the order gives all of its blocks up and waits again
    there are drafts         they get what all of this leaves over, of tokens and of free blocks

Those who have to leave are never in the step's plan already, because it is made in the same order.
Pure: integers in, a value out; no device, no clock.

Source: vllm-project/vllm, vllm/v1/core/sched/scheduler.py (the rule).
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from ge_text.engine.admission import LengthForecast, PeakLoad
from ge_text.engine.blocks import BlockPool, PrefixCache
from ge_text.engine.plan import CLEAN_BLOCK, BlockCopy, Move, Span, StepPlan
from ge_text.engine.preemption import Preemption
from ge_text.engine.queue import ORDER
from ge_text.engine.sequence import BlockContent, Sequence, SequenceState

__all__ = ["Scheduler"]

# Whether a sequence may join, beside those that run, as far as its adapter is concerned.
MayJoin = Callable[[Sequence, Iterable[Sequence]], bool]


@dataclass(slots=True)
class _Draft:
    """A plan in the making, and what is left for it: tokens in all, and of those who lack many."""

    budget: int
    chunk: int
    spans: list[Span] = field(default_factory=list)
    out: list[Move] = field(default_factory=list)
    into: list[Move] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    recomputed: list[Sequence] = field(default_factory=list)

    def drop(self, sequence: Sequence) -> None:
        """Take back what was planned for a sequence."""
        self.spans = [span for span in self.spans if span.sequence is not sequence]
        self.copies = [copy for copy in self.copies if copy.sequence is not sequence]

    def origin(self, block: int) -> int:
        """Return where a block's content is before the step: it may be a copy itself."""
        return next((copy.source for copy in self.copies if copy.destination == block), block)

    def allowed(self, lacking: int, reserved: int = 0) -> int:
        """Return how many of the tokens that a sequence lacks it may have; maybe none."""
        if lacking == 1:
            return min(1, self.budget)
        return max(0, min(lacking, self.chunk, self.budget - reserved))

    def take(self, sequence: Sequence, count: int, lacking: int) -> None:
        self.spans.append(Span(sequence, sequence.num_computed, count))
        self.budget -= count
        if lacking > 1:
            self.chunk -= count


@dataclass(slots=True)
class _Beside:
    """What those that run take until their ends, and the contents that they compute next."""

    load: PeakLoad
    coming: set[BlockContent]


class Scheduler:
    """Who waits, who runs, and what the next step computes. Not for several threads.

    A step has `max_tokens`, which is at least `max_seqs`; `may_join`: see `AdapterCache`.

    Attributes:
        waiting: in the order of being served.
        running: likewise; each has its blocks.
        forecast: what it expects of lengths.
    """

    def __init__(
        self,
        pool: BlockPool,
        prefixes: PrefixCache,
        preemption: Preemption,
        *,
        max_tokens: int,
        max_seqs: int,
        may_join: MayJoin = lambda _, __: True,
    ) -> None:
        self._may_join = may_join
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.forecast = LengthForecast()
        self._pool = pool
        self._prefixes = prefixes
        self._preemption = preemption
        self._max_tokens = max_tokens
        self._max_seqs = max_seqs

    @property
    def num_lacking(self) -> tuple[int, int]:
        """How many of those that run lack one token only, so that they get their next one.

        And how many lack more: of those that run, and of those there are seats for.
        """
        decoding = sum(s.num_tokens - s.num_computed == 1 for s in self.running)
        seats = self._max_seqs - len(self.running)
        return decoding, len(self.running) - decoding + min(len(self.waiting), seats)

    @property
    def num_new_requests(self) -> int:
        """How many requests wait of which no sample has run yet. Any thread may ask."""
        waiting = list(self.waiting)
        return sum(sequence.leader is None and not sequence.begun for sequence in waiting)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait. It has to fit into the cache alone, at its full length."""
        insort(self.waiting, sequence, key=ORDER)

    def fork(self, sequence: Sequence, child: Sequence) -> None:
        """Let another one run that has the same tokens; it reads the same blocks."""
        blocks = sequence.blocks[: self._pool.blocks_for(sequence.num_computed)]
        self._pool.share(blocks)
        child.blocks.extend(blocks)
        insort(self.running, child, key=ORDER)

    def remove(self, sequence: Sequence, *, failed: bool = False) -> None:
        """Take a sequence out, wherever it is; what it held is free at once.

        What a failed one computed is not kept for others, nor what lies in host memory.
        """
        if failed:
            self._pool.unlabel(sequence.blocks)
            sequence.proven = False
        if sequence.state is SequenceState.RUNNING:
            if not failed:
                self._prefixes.note(sequence)
            self.running.remove(sequence)
        elif sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
        sequence.state = SequenceState.FINISHED
        self._free(sequence)
        if sequence.swapped:
            self._preemption.gave_back(sequence.swapped)
            sequence.swapped = 0
        sequence.saved = None

    def schedule(
        self, chunk: int, drafts: Mapping[Sequence, tuple[int, ...]] | None = None
    ) -> StepPlan:
        """Return the next step; `advance` is called when it is done.

        Args:
            chunk: tokens at most for those that lack more than one, together; at least 1.
            drafts: guesses at the next tokens of some that lack one; as many as there is room for
                are part of the step.
        """
        draft = _Draft(budget=self._max_tokens, chunk=chunk)
        for sequence in self.running:
            self._prefixes.note(sequence)
        before = list(self.running)
        self._continue_running(draft)
        if draft.out or draft.recomputed:
            self.forecast.failed(before)
        else:
            self._admit(draft)
        if drafts:
            self._add_drafts(draft, drafts)
        return StepPlan(
            spans=tuple(draft.spans),
            swapped_out=tuple(draft.out),
            swapped_in=tuple(draft.into),
            copies=tuple(draft.copies),
            recomputed=tuple(draft.recomputed),
        )

    def advance(self, spans: Many[Span]) -> None:
        """Take note that these were computed. What a step leaves out comes again in the next.

        Args:
            spans: with those drafts alone that were right; blocks behind them are free again.
        """
        for span in spans:
            sequence = span.sequence
            sequence.num_computed = span.stop
            needed = self._pool.blocks_for(span.stop)
            if len(sequence.blocks) > needed:
                self._pool.release(sequence.blocks[needed:])
                del sequence.blocks[needed:]

    def _continue_running(self, draft: _Draft) -> None:
        running = self.running
        # Each of those that lack one token is sure of it, wherever it stands in the order.
        reserved, _ = self.num_lacking
        place = 0
        while place < len(running):
            sequence = running[place]
            lacking = sequence.num_tokens - sequence.num_computed
            reserved -= lacking == 1
            count = draft.allowed(lacking, reserved)
            if count:
                count = self._make_room(sequence, count, draft)
            if count:
                draft.take(sequence, count, lacking)
            place += 1

    def _add_drafts(self, making: _Draft, drafts: Mapping[Sequence, tuple[int, ...]]) -> None:
        """Lengthen spans by drafts, for which no sequence waits, leaves or is left out."""
        for place, span in enumerate(making.spans):
            left = min(making.budget, self._room(span.sequence) - span.count)
            some = drafts.get(span.sequence, ())[: max(0, left)]
            if some and span.decodes:
                making.spans[place] = longer = span.with_drafts(some)
                self._grow(span.sequence, longer.stop, making)
                making.budget -= len(some)

    def _make_room(self, sequence: Sequence, count: int, draft: _Draft) -> int:
        """Return how many of these tokens have a slot now; none where the sequence had to leave."""
        while (room := self._room(sequence)) <= 0:
            last = self.running[-1]
            if last.group is None:
                self._preempt(last, draft)
            else:
                self._restart(last.group, draft)
            if sequence.state is not SequenceState.RUNNING:
                return 0
        count = min(count, room)
        self._grow(sequence, sequence.num_computed + count, draft)
        return count

    def _room(self, sequence: Sequence) -> int:
        """Return how many more tokens its own blocks and all free ones have slots for."""
        blocks = len(sequence.blocks) + self._pool.num_free - len(self._shared(sequence))
        return blocks * self._pool.block_size - sequence.num_computed

    def _shared(self, sequence: Sequence) -> array[int]:
        """Return the block that its next token goes to, where it has one and others read it too."""
        place = sequence.num_computed // self._pool.block_size
        block = sequence.blocks[place : place + 1]
        return block if block and self._pool.references(block[0]) > 1 else block[:0]

    def _grow(self, sequence: Sequence, tokens: int, draft: _Draft) -> None:
        """Give a sequence slots for its first `tokens`; those to come are for it alone."""
        place = sequence.num_computed // self._pool.block_size
        shared = self._shared(sequence)
        if shared:
            (own,) = self._pool.allocate(1)
            draft.copies.append(BlockCopy(sequence, draft.origin(shared[0]), own))
            self._pool.release(shared)
            sequence.blocks[place] = own
        self._pool.unlabel(sequence.blocks[place:])
        missing = self._pool.blocks_for(tokens) - len(sequence.blocks)
        if missing > 0:
            new = self._pool.allocate(missing)
            uninitialised = self._pool.take_uninitialised(new)
            draft.copies.extend(BlockCopy(sequence, CLEAN_BLOCK, block) for block in uninitialised)
            sequence.blocks.extend(new)

    def _preempt(self, sequence: Sequence, draft: _Draft) -> None:
        """Let the last sequence wait again."""
        self.running.remove(sequence)
        computed = self._pool.blocks_for(sequence.num_computed)
        if self._preemption.swaps(sequence, computed):
            draft.out.append(Move(sequence, tuple(sequence.blocks[:computed])))
            self._preemption.took(computed)
            sequence.swapped = computed
        else:
            draft.recomputed.append(sequence)
            sequence.num_computed = 0
        self._free(sequence)
        sequence.proven &= sequence.swapped > 0
        sequence.state = SequenceState.WAITING
        self.add(sequence)

    def _restart(self, group: list[Sequence], draft: _Draft) -> None:
        """Let the first of a group wait, with its prompt alone; the others are no more."""
        for one in group:
            draft.drop(one)
            self.running.remove(one)
            one.proven = False  # it may have blocks that this step was to clean
            self._free(one)
            one.num_computed, one.state = 0, SequenceState.FINISHED
        first = group[0]
        del group[1:]
        first.restart()
        first.state = SequenceState.WAITING
        self.add(first)
        draft.recomputed.append(first)

    def _admit(self, draft: _Draft) -> None:
        """Let those join that come next, as long as everybody is expected to fit to the end.

        The first one blocks all behind it: none is overtaken for ever. It waits also while another
        one computes what it lacks, which in that step has the tokens that it could have had.
        """
        free = self._max_seqs - sum(sequence.num_beams for sequence in self.running)
        if not self.waiting or free <= 0:
            return
        beside: _Beside | None = None
        while self.waiting and (sequence := self.waiting[0]).num_beams <= free:
            shared, tokens = self._find_computed(sequence)
            if self.running:  # who is alone has the whole cache
                if beside is None:
                    load = PeakLoad(self.running, self.forecast, self._pool.block_size)
                    beside = _Beside(load, self._prefixes.coming(self.running))
                if not self._may_run(sequence, shared, tokens, beside):
                    return
            lacking = sequence.num_tokens - tokens
            count = draft.allowed(lacking)
            if not count:
                return
            free -= sequence.num_beams
            self._start(sequence, shared, tokens, draft)
            if beside is not None:
                beside.load.add(sequence)
                beside.coming |= self._prefixes.coming((sequence,))
            self._grow(sequence, tokens + count, draft)
            draft.take(sequence, count, lacking)

    def _may_run(self, sequence: Sequence, shared: Many[int], tokens: int, beside: _Beside) -> bool:
        """Return whether a sequence may join those that run; it would begin with these tokens."""
        place = tokens // self._pool.block_size
        full = () if sequence.swapped else shared[:place]
        capacity = self._pool.capacity * self._pool.block_size
        if beside.load.with_one_more(sequence, full) > capacity:
            return False
        if sequence.adapter and not self._may_join(sequence, self.running):
            return False
        return sequence.swapped > 0 or self._prefixes.wanted(sequence, place) not in beside.coming

    def _find_computed(self, sequence: Sequence) -> tuple[Many[int], int]:
        """Return blocks with the first tokens of one that waits, and how many: at least one less.

        Those of the prefix cache are full, and are not written to again. The last one of a
        leader need not be: what comes behind is written to a copy.
        """
        if sequence.swapped:
            return (), sequence.num_computed
        found = self._prefixes.find(sequence)
        tokens = len(found) * self._pool.block_size
        leader = sequence.leader
        if leader is None or leader.state is not SequenceState.RUNNING or leader.saved is not None:
            return found, tokens
        same = min(leader.num_computed, sequence.num_prompt, sequence.num_tokens - 1)
        if same <= tokens:
            return found, tokens
        return leader.blocks[: self._pool.blocks_for(same)], same

    def _start(self, sequence: Sequence, shared: Many[int], tokens: int, draft: _Draft) -> None:
        """Let a sequence run that waits: with its own blocks again, or with those of others."""
        self.waiting.remove(sequence)
        if sequence.swapped:
            sequence.blocks.extend(self._pool.allocate(sequence.swapped))
            draft.into.append(Move(sequence, tuple(sequence.blocks)))
            self._preemption.gave_back(sequence.swapped)
            sequence.swapped = 0
        else:
            self._prefixes.count(sequence, tokens)
            if not sequence.begun:
                sequence.found = min(tokens, sequence.num_prompt)
            if shared:
                self._pool.share(shared)
                sequence.blocks.extend(shared)
            sequence.num_computed = tokens
        sequence.state, sequence.begun = SequenceState.RUNNING, True
        insort(self.running, sequence, key=ORDER)

    def _free(self, sequence: Sequence) -> None:
        self._pool.release(sequence.blocks, proven=sequence.proven)
        del sequence.blocks[:]
        sequence.labelled = 0
