"""The blocks of a paged cache: who has how many, which are free, who shares which.

A block holds the keys and values of `block_size` tokens in all layers. Block 0 is nobody's: padding
writes there. A block has as many references as sequences name it in their tables; it is free again
when the last one lets go. A block with one reference may be written; a shared one never is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ge_backend.errors import OutOfMemory, ProtocolError

__all__ = ["BlockPool"]


class BlockPool:
    """Reference counts of `num_blocks` blocks. Not for several threads.

    Attributes:
        block_size: tokens of a block.
        capacity: blocks that sequences can have: all but block 0.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Begin with all blocks free.

        Raises:
            OutOfMemory: there is no block beside that for padding.
        """
        self.block_size = block_size
        self.capacity = num_blocks - 1
        if self.capacity < 1:
            raise OutOfMemory(
                f"the cache has {num_blocks} blocks; expected at least 2, one of them for padding; "
                "give it more memory (kv_cache_bytes)"
            )
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, 0, -1))

    @property
    def num_free(self) -> int:
        """Blocks that nobody has."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that somebody has, each counted once."""
        return self.capacity - len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks hold so many tokens."""
        return -(-tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Return blocks that nobody else has.

        Raises:
            OutOfMemory: fewer are free; nothing was taken.
        """
        if count > len(self._free):
            raise OutOfMemory(
                f"{count} blocks of the cache were asked for, {len(self._free)} of "
                f"{self.capacity} are free"
            )
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def share(self, blocks: Sequence[int]) -> None:
        """Add a reference to blocks that somebody has.

        Raises:
            ProtocolError: nobody has one of them, or one is named twice; no reference was added.
        """
        self._check_held(blocks)
        for block in blocks:
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Take a reference from each of these blocks; who had the last one frees it.

        Raises:
            ProtocolError: nobody has one of them, or one is named twice; no reference was taken.
        """
        self._check_held(blocks)
        for block in blocks:
            self._references[block] -= 1
            if not self._references[block]:
                self._free.append(block)

    def references(self, block: int) -> int:
        """Return how many sequences name a block; 0 for a free one and for block 0."""
        return self._references[block]

    def integrity(self, tables: Iterable[Sequence[int]]) -> list[str]:
        """Recount from everybody's blocks; return what does not agree, with both numbers."""
        named = Counter(block for table in tables for block in table)
        problems = [
            f"block {block} has {count} references and is named {named[block]} times"
            for block, count in enumerate(self._references)
            if count != named[block]
        ]
        if len(set(self._free)) != len(self._free) or 0 in self._free:
            problems.append(f"free blocks {sorted(self._free)} have a block twice, or block 0")
        used = sum(count > 0 for count in self._references)
        if used + len(self._free) != self.capacity:
            problems.append(
                f"{used} blocks used and {len(self._free)} free are not {self.capacity}"
            )
        return problems

    def _check_held(self, blocks: Sequence[int]) -> None:
        if len(set(blocks)) != len(blocks):
            raise ProtocolError(f"blocks {list(blocks)} of the cache name one of them twice")
        for block in blocks:
            if not 0 < block < len(self._references) or not self._references[block]:
                raise ProtocolError(
                    f"block {block} of the cache is nobody's; it cannot be shared or given up"
                )
