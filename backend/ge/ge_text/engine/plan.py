"""What one step does, as a frozen value: all that a scheduler gives to the runner."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ge_text.engine.sequence import Sequence

__all__ = ["CLEAN_BLOCK", "BlockCopy", "Move", "Span", "StepPlan"]

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
