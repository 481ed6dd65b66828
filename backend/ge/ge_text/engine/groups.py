"""Which rows of a step are computed together, and in which shape.

Without buckets a step has its own shapes: those that have one token to compute are a group, those
with equally many drafts another, short pieces of text of one length too, and each longer piece of a
prompt is one of its own. A group is computed as long as its longest row, so short rows are one
apart where that pays. With buckets every group has a shape (batch, query, context blocks) that was
made ready: the cheapest one that covers its rows, from the list of its kind. Decoding rows stay
together, with and without drafts; prompts go together whose cheapest shapes differ in nothing but
the batch. What no shape covers runs in its own, and says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from ge_backend.shapes.buckets.grid import covers
from ge_text.engine.plan import Span
from ge_text.engine.sequence import Sequence

__all__ = ["GROUP_TOKENS", "GroupPlan", "Shape", "ShapeLists", "StepShapes", "free_groups"]

Shape = tuple[int, int, int]  # rows, new tokens of each, blocks of context
MAX_KEPT_SHAPES = 4096
# What one more group of a step takes, as tokens of padding that could be computed meanwhile.
# Tried with 400, 800 and 1600 on two cores, the sizes of SmolLM2-135M, 6 to 32 rows of 16 to 600
# tokens: little difference, and most for the largest.
GROUP_TOKENS = 1600
SHORT = 16  # new tokens of a row whose attention costs less than a group of its own would


@dataclass(frozen=True, slots=True)
class ShapeLists:
    """The shapes that a model is made ready for: with a query of 1, and with a longer one."""

    decode: tuple[Shape, ...]
    prompt: tuple[Shape, ...]

    def __len__(self) -> int:
        """Return how many there are of both kinds."""
        return len(self.decode) + len(self.prompt)


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Rows that are computed together, and the shape that they run in.

    Attributes:
        spans: at most `batch`, none longer than `query`.
        shape: batch, query, and context in blocks, which covers each row as it is after the step.
        planned: the shape was made ready, or none has to be.
    """

    spans: tuple[Span, ...]
    shape: Shape
    planned: bool = True


def free_groups(spans: Many[Span], block_size: int) -> list[GroupPlan]:
    """Return groups in their own shapes, those with one token first."""
    rows: list[list[Span]] = []
    for kind in _by_kind(spans):
        alike: dict[tuple[int, Sequence | None], list[Span]] = defaultdict(list)
        for span in kind:
            alike[span.count, None if span.count <= SHORT else span.sequence].append(span)
        rows += (part for some in alike.values() for part in _by_length(some))
    return [GroupPlan(tuple(some), _own_shape(some, block_size)) for some in rows]


class StepShapes:
    """The shapes that a model was made ready for. Not for several threads.

    Args:
        cost: of running a shape, in any unit.
    """

    def __init__(self, lists: ShapeLists, block_size: int, cost: Callable[[Shape], float]) -> None:
        """Sort each list by cost, of equal ones the smallest first."""
        self._decode = sorted(lists.decode, key=lambda shape: (cost(shape), shape))
        self._prompt = sorted(lists.prompt, key=lambda shape: (cost(shape), shape))
        self._block_size = block_size
        self._found: dict[Shape, Shape | None] = {}

    @property
    def longest_query(self) -> int:
        """The most new tokens that one row of a shape has."""
        return max(query for _, query, _ in self._prompt)

    def covering(self, need: Shape) -> Shape | None:
        """Return the cheapest shape of the need's kind that is nowhere smaller, or None."""
        if need not in self._found:
            if len(self._found) >= MAX_KEPT_SHAPES:
                self._found.clear()
            known = self._decode if need[1] == 1 else self._prompt
            self._found[need] = next((shape for shape in known if covers(shape, need)), None)
        return self._found[need]

    def groups(self, spans: Many[Span]) -> list[GroupPlan]:
        """Return groups in shapes of the lists wherever one covers them, decoding rows first."""
        decoding, longer = _by_kind(spans)
        return [*self._packed(decoding), *self._prompts(longer)]

    def _prompts(self, spans: Many[Span]) -> Iterator[GroupPlan]:
        alike: dict[Shape, list[Span]] = defaultdict(list)
        for span in spans:
            need = _own_shape((span,), self._block_size)
            _, query, context = self.covering(need) or need
            alike[1, query, context].append(span)
        for some in alike.values():
            yield from self._packed(some)

    def _packed(self, spans: Many[Span]) -> Iterator[GroupPlan]:
        """Yield groups of these rows: one, or as few as there have to be, long ones together."""
        rest = sorted(spans, key=lambda span: -span.stop)
        while rest:
            count = len(rest)
            while count > 1 and self.covering(_own_shape(rest[:count], self._block_size)) is None:
                count -= 1
            some, rest = tuple(rest[:count]), rest[count:]
            need = _own_shape(some, self._block_size)
            shape = self.covering(need)
            yield GroupPlan(some, shape or need, planned=shape is not None)


def _by_kind(spans: Many[Span]) -> tuple[list[Span], list[Span]]:
    """Return the spans of one known token, and the longer ones."""
    return [s for s in spans if s.known == 1], [s for s in spans if s.known > 1]


def _by_length(spans: list[Span]) -> Iterator[list[Span]]:
    """Cut rows into groups of similar length wherever less padding pays for one more group."""
    lengths = np.array([span.stop for span in spans])
    if (lengths.max() - lengths.min()) * len(spans) < GROUP_TOKENS:
        yield spans  # in their own order: most steps
        return
    order = np.argsort(-lengths, kind="stable")
    longest_first, lengths = [spans[place] for place in order], lengths[order]
    saved = (lengths[0] - lengths) * np.arange(len(spans), 0, -1)
    cut = int(saved.argmax())
    if saved[cut] < GROUP_TOKENS:
        yield longest_first
        return
    yield from _by_length(longest_first[:cut])
    yield from _by_length(longest_first[cut:])


def _own_shape(spans: Many[Span], block_size: int) -> Shape:
    longest = max(span.stop for span in spans)
    return len(spans), max(span.count for span in spans), -(-longest // block_size)
