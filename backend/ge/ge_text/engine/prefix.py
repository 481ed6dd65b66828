"""Finds what others have computed already of a text's beginning, block by block.

The keys of a token follow from it and all tokens before it. So the content of a full block is its
own tokens and a digest of those before, which is chained from block to block:

    text     [ tokens 0..15 ][ tokens 16..31 ][ tokens 32.. ]
    before     d0              d1 = H(d0, 0..15)   d2 = H(d1, 16..31)

A block is found by its digest and verified by its tokens. The chain begins with what else the keys
follow from: the adapter, and the request's `cache_salt`, so that a client that does not know a
salt neither finds nor misses what was computed under it. Model and dtype are the cache's.

Only blocks that are full of computed and certain tokens get a label: neither tokens that are still
being computed, nor tokens that a draft merely proposes, are ever found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice

from ge_text.engine.blocks import BlockContent, BlockPool
from ge_text.engine.sequence import Sequence

__all__ = ["PrefixCache"]

DIGEST = 16


class PrefixCache:
    """The contents of a pool's blocks. Not for several threads.

    Args:
        on: else nothing is ever found, labelled or counted.

    Attributes:
        asked: tokens of the texts for which a beginning was looked for.
        found: those of them that were not computed again.
    """

    def __init__(self, pool: BlockPool, *, on: bool = True) -> None:
        self._on = on
        self.asked = 0
        self.found = 0
        self._pool = pool

    def find(self, sequence: Sequence) -> list[int]:
        """Return the blocks that hold the longest known beginning of a text, but its last token.

        That one has to be computed, for the token behind it to be drawn.
        """
        found: list[int] = []
        for content in self._contents(sequence, sequence.num_tokens - 1):
            block = self._pool.find(content)
            if block is None:
                break
            found.append(block)
        return found

    def wanted(self, sequence: Sequence, blocks: int) -> BlockContent | None:
        """Return what a sequence would like to find behind the `blocks` that it found."""
        contents = self._contents(sequence, sequence.num_tokens - 1)
        return next(islice(contents, blocks, None), None)

    def coming(self, sequences: Iterable[Sequence]) -> set[BlockContent]:
        """Return the contents of the blocks that these compute next, where all of it is known."""
        return {content for one in sequences for content in self._next(one)}

    def note(self, sequence: Sequence) -> None:
        """Let the blocks be found that a sequence has filled; all of its tokens are certain."""
        certain = min(sequence.num_computed, sequence.num_tokens)
        if certain // self._pool.block_size > sequence.labelled:
            contents = list(self._contents(sequence, certain))
            for place in range(sequence.labelled, len(contents)):
                self._pool.label(sequence.blocks[place], contents[place])
            sequence.labelled = len(contents)

    def count(self, sequence: Sequence, tokens: int) -> None:
        """Count a sequence that joins, and how many tokens it found computed."""
        if self._takes(sequence):
            self.asked += sequence.num_tokens
            self.found += tokens

    def _takes(self, sequence: Sequence) -> bool:
        return self._on and sequence.request.parameters.prefix_cache

    def _next(self, sequence: Sequence) -> Iterator[BlockContent]:
        """Return the content of the block that a sequence computes next, if it is known."""
        place = sequence.num_computed // self._pool.block_size
        if (place + 1) * self._pool.block_size > sequence.num_tokens:
            return iter(())
        return islice(self._contents(sequence, sequence.num_tokens), place, place + 1)

    def _contents(self, sequence: Sequence, tokens: int) -> Iterator[BlockContent]:
        """Return the contents of the full blocks among its first `tokens` known ones."""
        if not self._takes(sequence):
            return iter(())
        size, known = self._pool.block_size, sequence.contents
        for start in range(len(known) * size, tokens - size + 1, size):
            before = _digest(*known[-1]) if known else _root(sequence)
            ids = sequence.ids(start, start + size).tobytes()
            known.append(BlockContent(before, ids))
        return islice(known, tokens // size)


def _root(sequence: Sequence) -> bytes:
    """Return the digest that a text's first block has before it."""
    salt = sequence.request.parameters.cache_salt
    return _digest(json.dumps([sequence.adapter, salt]).encode())


def _digest(*parts: bytes) -> bytes:
    return blake2b(b"".join(parts), digest_size=DIGEST).digest()
