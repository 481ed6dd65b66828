"""Addresses: which block holds one, and its bytes.

Addresses are never given out twice, so a pointer kept too long is always seen.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from acl_simulator.refusals import Misuses

__all__ = ["POISON", "AddressSpace", "Block", "align_up"]

POISON = 0xA5  # what memory holds that nobody has written


def align_up(value: int, to: int) -> int:
    """Return the next multiple of `to`."""
    return -(-value // to) * to


@dataclass(slots=True, kw_only=True, eq=False)
class Block:
    """One allocation.

    Attributes:
        start: its address.
        size: bytes asked for.
        cost: bytes that it takes of the device's memory; what is beyond `size` is not to be used.
        place: "device 0", or "host".
        owner: "user", or who in the runtime holds it.
        data: the bytes; None once freed.
    """

    start: int
    size: int
    cost: int
    place: str
    owner: str
    data: np.ndarray | None

    @property
    def stop(self) -> int:
        """The first address after it."""
        return self.start + self.size

    def __str__(self) -> str:
        return f"{self.size} bytes at {self.start:#x} ({self.place}, {self.owner})"


class AddressSpace:
    """The blocks of one kind of memory, by address."""

    def __init__(self, misuses: Misuses) -> None:
        self._misuses = misuses
        self._starts: list[int] = []
        self._blocks: list[Block] = []

    def __iter__(self) -> Iterator[Block]:
        """Iterate over what is allocated."""
        return (block for block in self._blocks if block.data is not None)

    def add(self, block: Block) -> None:
        """Take a new block."""
        at = bisect_right(self._starts, block.start)
        self._starts.insert(at, block.start)
        self._blocks.insert(at, block)

    def find(self, address: int) -> Block | None:
        """Return the block, freed or not, that an address lies in."""
        at = bisect_right(self._starts, address) - 1
        if at >= 0 and address < self._starts[at] + max(self._blocks[at].cost, 1):
            return self._blocks[at]
        return None

    def at_start(self, address: int, call: str) -> Block:
        """Return the live block that begins at an address, for freeing it."""
        block = self.find(address)
        if block is None or block.start != address:
            self._misuses.refuse(f"{call}({address:#x}): no allocation ever began there")
        if block.data is None:
            self._misuses.refuse(f"{call}({address:#x}): double free of {block}")
        return block

    def view(self, address: int, size: int) -> np.ndarray:
        """Return the bytes [address, address + size), which are one live block's."""
        block = self.find(address)
        if block is None:
            self._misuses.refuse(f"{size} bytes at {address:#x} were never allocated")
        if block.data is None:
            self._misuses.refuse(f"use of freed memory: {size} bytes at {address:#x} of {block}")
        if address + size > block.stop:
            self._misuses.refuse(
                f"{size} bytes at {address:#x} end {address + size - block.stop} bytes after {block}"
            )
        offset = address - block.start
        return block.data[offset : offset + size]
