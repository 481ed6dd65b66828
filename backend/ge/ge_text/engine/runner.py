"""Runs a step's plan on a model, and finds who is at fault where it fails.

Groups of spans become the flat arrays that a model takes, and what it has drawn is sorted by spans.
A step that fails with several sequences in it is repeated in halves, down to one: who fails alone
has caused it. Repeating is harmless: the same keys go to the same slots, and a token depends on its
sequence's seed and position alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ge_backend.errors import DeviceFault, GeError, GraphFailed, drop_frames, unforeseen
from ge_backend.tensors import Array
from ge_text.engine.adapters import AdapterCache, adapters_of
from ge_text.engine.figures import Tally
from ge_text.engine.plan import (
    CLEAN_BLOCK,
    BlockCopy,
    GroupPlan,
    Move,
    Shape,
    Span,
    StepPlan,
    StepShapes,
    free_groups,
)
from ge_text.engine.preemption import Preemption
from ge_text.engine.sequence import Sequence
from ge_text.engine.speculation.verify import num_right
from ge_text.models.base import LanguageModel
from ge_text.models.batch import Batch, Drawn, Group

__all__ = ["DrawnToken", "Outcome", "Runner", "build_batch"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """The token that a sequence got; see `Drawn`."""

    sequence: Sequence
    token: int
    logprob: float
    rank: int
    top: tuple[Array, Array] | None


@dataclass(slots=True)
class Outcome:
    """What became of a step's sequences.

    Attributes:
        computed: spans whose keys are in the cache now, with those drafts alone that were right.
        drawn: of each that reached its sequence's end a token, and one more per draft that was
            right, in order.
        failed: sequences that have come to nothing, and why.
        model_s: seconds that the model took.
    """

    computed: list[Span] = field(default_factory=list)
    drawn: list[DrawnToken] = field(default_factory=list)
    failed: dict[Sequence, GeError] = field(default_factory=dict)
    model_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _BuiltBatch:
    """A batch, and whose tokens its draws are: of each span one, and one more per draft."""

    batch: Batch
    drawn: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class _Flat:
    """The tokens of a step, int64 [N] each; all are padding until they are filled in."""

    ids: Array
    positions: Array
    slots: Array
    block_size: int

    def fill(self, at: int, span: Span, table: Array) -> None:
        """Put a span's tokens at this place; `table` is its row of blocks."""
        stop = at + span.count
        known = at + span.known
        self.ids[at:known] = span.sequence.ids(span.start, span.start + span.known)
        self.ids[known:stop] = span.drafts
        if span.count == 1:
            block, offset = divmod(span.start, self.block_size)
            self.positions[at] = span.start
            self.slots[at] = table[block] * self.block_size + offset
            return
        positions = np.arange(span.start, span.stop)
        blocks, offsets = np.divmod(positions, self.block_size)
        self.positions[at:stop] = positions
        self.slots[at:stop] = table[blocks] * self.block_size + offsets


class Runner:
    """Does what plans say, with one model. Not for several threads.

    Args:
        model: with its cache open.
        preemption: learns what copies take.
        clock: seconds, ever forward.

    Attributes:
        shapes: what the model was made ready for; None: it takes any shape.
    """

    def __init__(
        self,
        model: LanguageModel,
        preemption: Preemption,
        tally: Tally,
        clock: Callable[[], float],
        adapters: AdapterCache,
    ) -> None:
        self._adapters = adapters
        self._model = model
        self.shapes: StepShapes | None = None
        self._preemption = preemption
        self._tally = tally
        self._clock = clock

    def run(self, plan: StepPlan) -> Outcome:
        """Bring adapters, copy blocks out, in and for those that write to shared ones, compute.

        Raises:
            DeviceFault: the device broke; nothing that it holds can be relied upon.
        """
        outcome = Outcome()
        for move in plan.swapped_out:
            self._try(move, self._swap_out, outcome)
        for move in plan.swapped_in:
            self._try(move, self._swap_in, outcome)
        if plan.copies:
            self._copy(plan.copies, outcome)
        if any(span.sequence.adapter for span in plan.spans):
            self._load_adapters(plan.spans, outcome)
        self._compute([s for s in plan.spans if s.sequence not in outcome.failed], outcome)
        return outcome

    def _try(self, move: Move, copy: Callable[[Move], None], outcome: Outcome) -> None:
        begun = self._clock()
        error = _error_of(lambda: copy(move))
        if error is None:
            self._preemption.observe_swap(len(move.blocks), self._clock() - begun)
        else:
            outcome.failed[move.sequence] = error

    def _swap_out(self, move: Move) -> None:
        move.sequence.saved = self._model.swap_out(move.blocks)
        self._tally.add("swapped_out")

    def _swap_in(self, move: Move) -> None:
        saved, move.sequence.saved = move.sequence.saved, None
        if saved is not None:
            self._model.swap_in(saved, move.blocks)
            self._tally.add("swapped_in")

    def _copy(self, copies: Many[BlockCopy], outcome: Outcome) -> None:
        """Copy blocks on the device; where that fails, all whose copies they are do."""
        pairs = [(copy.source, copy.destination) for copy in copies]
        error = _error_of(lambda: self._model.copy_blocks(pairs))
        if error is None:
            self._tally.add("copied_blocks", sum(source != CLEAN_BLOCK for source, _ in pairs))
        else:
            outcome.failed.update({copy.sequence: error for copy in copies})

    def _load_adapters(self, spans: Many[Span], outcome: Outcome) -> None:
        """See that the model holds the step's adapters; who has one that fails, fails."""
        needed = adapters_of(span.sequence for span in spans)
        self._tally.add("adapted_steps")
        for key, adapter in needed.items():
            error = _error_of(partial(self._adapters.load, adapter, needed))
            if error is not None:
                users = [span.sequence for span in spans if span.sequence.adapter == key]
                outcome.failed.update(dict.fromkeys(users, error))

    def _compute(self, spans: Many[Span], outcome: Outcome) -> None:
        """Compute spans together, or in parts where that fails, and add what came of it."""
        error = _error_of(lambda: self._step(spans, outcome)) if spans else None
        if error is None:
            return
        self._tally.add("failed_steps")
        if len(spans) == 1:
            outcome.failed[spans[0].sequence] = error
            return
        middle = len(spans) // 2
        self._compute(spans[:middle], outcome)
        self._compute(spans[middle:], outcome)

    def _step(self, spans: Many[Span], outcome: Outcome) -> None:
        block_size = self._model.block_size
        groups = self.shapes.groups(spans) if self.shapes else free_groups(spans, block_size)
        built = build_batch(groups, block_size)
        self._tally.add("padded_tokens", len(built.batch.ids) - sum(span.count for span in spans))
        if unplanned := [group.shape for group in groups if not group.planned]:
            self._note_unplanned(unplanned)
        if self.shapes:
            self._tally.buckets.update(group.shape for group in groups if group.planned)
        begun = self._clock()
        drawn = self._model.step(built.batch)
        outcome.model_s += self._clock() - begun
        _add(outcome, spans, built.drawn, drawn)

    def _note_unplanned(self, shapes: Many[Shape]) -> None:
        """Count groups outside of every bucket; the log has the first one."""
        if not self._tally.counts["unplanned_groups"]:
            log.warning(
                "a step ran in shape %s (batch, query, context blocks), which no bucket covers; "
                "such steps are slow, and counted from here on",
                shapes[0],
            )
        self._tally.add("unplanned_groups", len(shapes))


def build_batch(groups: Many[GroupPlan], block_size: int) -> _BuiltBatch:
    """Return the step's arrays; what is no token of a span is padding and points at block 0."""
    total = sum(plan.shape[0] * plan.shape[1] for plan in groups)
    ids, positions, slots = np.zeros((3, total), np.int64)
    flat = _Flat(ids, positions, slots, block_size)
    made: list[Group] = []
    sampled: list[int] = []
    drawn: list[Span] = []
    adapted: dict[str, list[int]] = {}
    at = 0
    for plan in groups:
        rows, query, context = plan.shape
        tables = np.zeros((rows, context), np.int64)
        lengths = np.zeros(rows, np.int64)
        for row, span in enumerate(plan.spans):
            blocks = -(-span.stop // block_size)
            tables[row, :blocks] = span.sequence.blocks[:blocks]
            lengths[row] = span.stop
            first = at + row * query
            flat.fill(first, span, tables[row])
            if span.sequence.adapter:
                tokens = range(first, first + span.count)
                adapted.setdefault(span.sequence.adapter, []).extend(tokens)
            if span.draws:
                last = first + span.known - 1
                sampled.extend(range(last, last + 1 + len(span.drafts)))
                drawn.append(span)
        made.append(Group(rows=rows, query=query, tables=tables, lengths=lengths))
        at += rows * query
    batch = Batch(
        ids=flat.ids,
        positions=flat.positions,
        slots=flat.slots,
        groups=tuple(made),
        sampled=np.array(sampled, np.int64),
        rows=tuple(
            span.sequence.sample_row(span.drafts[:place])
            for span in drawn
            for place in range(1 + len(span.drafts))
        ),
        adapters={key: np.array(tokens, np.int64) for key, tokens in adapted.items()},
    )
    return _BuiltBatch(batch, tuple(drawn))


def _error_of(action: Callable[[], None]) -> GeError | None:
    """Return the error that an action ends with: no sequence ends its neighbours.

    Raises:
        DeviceFault: the device broke.
    """
    try:
        action()
    except DeviceFault:
        raise
    except GeError as error:
        return drop_frames(error)
    except Exception as error:
        log.exception("a step failed in an unforeseen way")
        return unforeseen(error, GraphFailed)
    return None


def _add(outcome: Outcome, spans: Iterable[Span], asked: Many[Span], drawn: Drawn) -> None:
    """Sort what a step drew by whether it is a token, and whether it follows a right draft."""
    tokens, logprobs = drawn.tokens.tolist(), drawn.logprobs.tolist()
    ranks = drawn.ranks.tolist()
    right: dict[Sequence, int] = {}
    row = 0
    for span in asked:
        rows = range(row, row := row + 1 + len(span.drafts))
        # A row that failed behind a right draft is the next step's first, and fails there.
        sound = next((at for at in rows if at in drawn.failed), rows.stop) - rows.start
        if not sound:
            outcome.failed[span.sequence] = drawn.failed[rows.start]
            continue
        drafts = span.drafts[: sound - 1]
        number = num_right(drafts, tokens[rows.start :]) if drafts else 0
        right[span.sequence] = number
        outcome.drawn.extend(
            DrawnToken(span.sequence, tokens[at], logprobs[at], ranks[at], drawn.top[at])
            for at in rows[: number + 1]
        )
    for span in spans:
        if span.sequence not in outcome.failed:
            kept = span.drafts[: right.get(span.sequence, 0)]
            outcome.computed.append(span.with_drafts(kept) if span.drafts else span)
