"""The blocks of a paged cache: who has how many, which are free, who shares which.

A block holds the keys and values of `block_size` tokens in all layers. Block 0 is padding's, and it
holds numbers. A block has as many references as sequences name it in their tables; it is free again
when the last one gives it up. A block with one reference may be written; a shared one never is.

A full block may be labelled with its content. Then it is kept when the last one lets go, and found
again by that content, until the room is needed: the blocks that were let go first go first, of
one table the last ones, so that a beginning outlives what follows it.

A block whose last owner was not proven to have computed numbers may hold something else. Who gets
it next has to clean it: what is not written yet is masked, but multiplied all the same.

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
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from collections.abc import Sequence as Many
from hashlib import blake2b
from itertools import islice

from ge_backend.errors import OutOfMemory, ProtocolError
from ge_text.engine.sequence import BlockContent, Sequence

__all__ = ["BlockPool", "PrefixCache"]

DIGEST = 16


class BlockPool:
    """Reference counts of `num_blocks` blocks. Not for several threads.

    Attributes:
        block_size: tokens of a block.
        capacity: blocks that sequences can have: all but block 0.
        evicted: how many kept blocks have made room for others so far.

    Raises:
        OutOfMemory: there is no block beside that for padding.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.capacity = num_blocks - 1
        if self.capacity < 1:
            raise OutOfMemory(
                f"the cache has {num_blocks} blocks; expected at least 2, one of them for padding; "
                "give it more memory (kv_cache_bytes)"
            )
        self.evicted = 0
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, 0, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()  # let go long ago first
        self._labels: dict[int, BlockContent] = {}
        self._by_content: dict[BlockContent, int] = {}
        self._uninitialised: set[int] = set()

    @property
    def num_free(self) -> int:
        """Blocks that no sequence has, kept ones included."""
        return len(self._free) + len(self._kept)

    @property
    def num_kept(self) -> int:
        """Blocks that no sequence has, and that are found by their content."""
        return len(self._kept)

    @property
    def num_used(self) -> int:
        """Blocks that sequences have, each counted once."""
        return self.capacity - self.num_free

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks hold this number of tokens."""
        return -(-tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Return blocks that no other sequence has.

        Raises:
            OutOfMemory: fewer are free; nothing was taken.
        """
        if count > self.num_free:
            raise OutOfMemory(
                f"{count} blocks of the cache were asked for, {self.num_free} of "
                f"{self.capacity} are free"
            )
        taken = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def share(self, blocks: Many[int]) -> None:
        """Add a reference to blocks that are in use, or kept.

        Raises:
            ProtocolError: one of them is free, or named twice; no reference was added.
        """
        self._check_held(blocks, self._kept)
        for block in blocks:
            self._references[block] += 1
            self._kept.pop(block, None)

    def release(self, blocks: Many[int], *, proven: bool = True) -> None:
        """Take a reference from each of these blocks of a table; a last one keeps or frees it.

        They are in the order of the table; `proven`: they hold numbers.

        Raises:
            ProtocolError: one of them is free, or named twice; no reference was taken.
        """
        self._check_held(blocks)
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block]:
                continue
            if not proven:
                self._uninitialised.add(block)
            if block in self._labels:
                self._kept[block] = None
            else:
                self._free.append(block)

    def take_uninitialised(self, blocks: Many[int]) -> list[int]:
        """Return those of these blocks that may hold no numbers; the caller cleans them."""
        found = [block for block in blocks if block in self._uninitialised]
        self._uninitialised.difference_update(found)
        return found

    def label(self, block: int, content: BlockContent) -> None:
        """Let a block that is in use be found; without effect where another is found already.

        It must not be written to from now on.
        """
        if self._by_content.setdefault(content, block) == block:
            self._labels[block] = content

    def unlabel(self, blocks: Iterable[int]) -> None:
        """Let blocks that are in use no longer be found, nor kept; they may be written again."""
        for block in blocks:
            content = self._labels.pop(block, None)
            if content is not None:
                del self._by_content[content]

    def find(self, content: BlockContent) -> int | None:
        """Return the block that holds this, kept or in use; None: there is none."""
        return self._by_content.get(content)

    def references(self, block: int) -> int:
        """Return how many sequences name a block; 0 for a free one and for block 0."""
        return self._references[block]

    def _evict(self) -> int:
        block, _ = self._kept.popitem(last=False)
        self.unlabel((block,))
        self.evicted += 1
        return block

    def _check_held(self, blocks: Many[int], also: Container[int] = ()) -> None:
        if len(set(blocks)) != len(blocks):
            raise ProtocolError(f"blocks {list(blocks)} of the cache name one of them twice")
        for block in blocks:
            known = 0 < block < len(self._references)
            if not known or not (self._references[block] or block in also):
                raise ProtocolError(
                    f"block {block} of the cache is nobody's; it cannot be shared or given up"
                )


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
