"""From groups of spans to the flat arrays that a model takes."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from ge_backend.tensors import Array
from ge_text.engine.groups import GroupPlan
from ge_text.engine.plan import Span
from ge_text.models.batch import Batch, Group

__all__ = ["BuiltBatch", "build_batch"]


@dataclass(frozen=True, slots=True)
class BuiltBatch:
    """A batch, and whose tokens its draws are: of each span one, and one more per draft."""

    batch: Batch
    drawn: tuple[Span, ...]


class _Flat:
    """The tokens of a step; all are padding until they are filled in."""

    def __init__(self, total: int, block_size: int) -> None:
        self.ids, self.positions, self.slots = (np.zeros(total, np.int64) for _ in range(3))
        self._block_size = block_size

    def fill(self, at: int, span: Span, table: Array) -> None:
        """Put a span's tokens at this place; `table` is its row of blocks."""
        stop = at + span.count
        known = at + span.known
        self.ids[at:known] = span.sequence.ids(span.start, span.start + span.known)
        self.ids[known:stop] = span.drafts
        if span.count == 1:
            block, offset = divmod(span.start, self._block_size)
            self.positions[at] = span.start
            self.slots[at] = table[block] * self._block_size + offset
            return
        positions = np.arange(span.start, span.stop)
        blocks, offsets = np.divmod(positions, self._block_size)
        self.positions[at:stop] = positions
        self.slots[at:stop] = table[blocks] * self._block_size + offsets


def build_batch(groups: Many[GroupPlan], block_size: int) -> BuiltBatch:
    """Return the step's arrays; what is no token of a span is padding and points at block 0."""
    flat = _Flat(sum(plan.shape[0] * plan.shape[1] for plan in groups), block_size)
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
    return BuiltBatch(batch, tuple(drawn))
