"""What one step does, as frozen values: tokens of sequences, and which are computed together.

A scheduler gives a `StepPlan` to the runner, which computes its spans in groups.

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
from dataclasses import dataclass, replace

import numpy as np

from ge_backend.shapes.buckets.grid import covers
from ge_text.engine.sequence import Sequence

__all__ = [
    "CLEAN_BLOCK",
    "GROUP_TOKENS",
    "BlockCopy",
    "GroupPlan",
    "Move",
    "Shape",
    "ShapeLists",
    "Span",
    "StepPlan",
    "StepShapes",
    "free_groups",
]

Shape = tuple[int, int, int]  # rows, new tokens of each, blocks of context
MAX_KEPT_SHAPES = 4096
# What one more group of a step takes, as tokens of padding that could be computed meanwhile.
# Tried with 400, 800 and 1600 on two cores, the sizes of SmolLM2-135M, 6 to 32 rows of 16 to 600
# tokens: little difference, and most for the largest.
GROUP_TOKENS = 1600
SHORT = 16  # new tokens of a row whose attention costs less than a group of its own would
CLEAN_BLOCK = 0  # no sequence's, and it holds numbers


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `start` to `start + count` of a sequence; its blocks have room for them.

    The keys of the tokens before are in the cache. Where the span reaches the last known token, the
    step draws the next one; behind it there may be drafts, after each of which one more is drawn.

    Attributes:
        count: tokens in all.
        drafts: the last of them, which are not verified.
    """

    sequence: Sequence
    start: int
    count: int
    drafts: tuple[int, ...] = ()

    @property
    def stop(self) -> int:
        """The first token behind it."""
        return self.start + self.count

    @property
    def known(self) -> int:
        """How many of its tokens are known ones."""
        return self.count - len(self.drafts)

    @property
    def draws(self) -> bool:
        """Whether the step draws a token of this sequence."""
        return self.start + self.known == self.sequence.num_tokens

    @property
    def decodes(self) -> bool:
        """Whether it is the latest token of a sequence, maybe with drafts behind it."""
        return self.known == 1 and self.draws

    def with_drafts(self, drafts: tuple[int, ...]) -> Span:
        """Return the span with these drafts in place of its own."""
        return replace(self, count=self.known + len(drafts), drafts=drafts)


@dataclass(frozen=True, slots=True)
class Move:
    """Blocks of a sequence that go to host memory, or get what is there."""

    sequence: Sequence
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A block that a sequence is about to write to and others read: it gets a copy of its own.

    Where the source is `CLEAN_BLOCK`, its own block may hold something else than numbers.
    """

    sequence: Sequence
    source: int
    destination: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step, done in this order: blocks out, blocks in, blocks copied, spans computed.

    Attributes:
        spans: each sequence once, in the order of being served.
        swapped_out: their blocks are others' from here on.
        swapped_in: likewise their own again.
        copies: all of their sources are read before any destination is written.
        recomputed: sequences that lost their blocks and start over.
    """

    spans: tuple[Span, ...] = ()
    swapped_out: tuple[Move, ...] = ()
    swapped_in: tuple[Move, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    recomputed: tuple[Sequence, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens that it computes."""
        return sum(span.count for span in self.spans)


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
    alike: dict[tuple[bool, int, Sequence | None], list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.known > 1):
        alone = span.sequence if span.count > SHORT else None
        alike[span.known > 1, span.count, alone].append(span)
    rows = [part for some in alike.values() for part in _by_length(some)]
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
        decoding = [span for span in spans if span.known == 1]
        alike: dict[tuple[int, int], list[Span]] = defaultdict(list)
        for span in spans:
            if span.known > 1:
                need = _own_shape((span,), self._block_size)
                _, query, context = self.covering(need) or need
                alike[query, context].append(span)
        return [group for some in (decoding, *alike.values()) for group in self._packed(some)]

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
