"""How a sequence gives its blocks up: computed again later, or kept in host memory meanwhile."""

from __future__ import annotations

from ge_text.engine.sequence import Sequence
from ge_text.engine.settings import PreemptionMode

__all__ = ["Preemption"]

_WEIGHT = 0.2  # of the latest measurement among those before it


class Preemption:
    """Decides by what was measured, within `swap_blocks` of host memory."""

    def __init__(self, mode: PreemptionMode, swap_blocks: int) -> None:
        """Begin without measurements: the first swap is tried."""
        self._mode = mode
        self._room = swap_blocks
        self._block_s = 0.0
        self.token_s = 0.0

    def swaps(self, sequence: Sequence, blocks: int) -> bool:
        """Return whether this number of blocks of a sequence goes to host memory."""
        if self._mode is PreemptionMode.RECOMPUTE or not 0 < blocks <= self._room:
            return False
        return self._mode is PreemptionMode.SWAP or (
            2 * blocks * self._block_s <= sequence.num_computed * self.token_s
        )

    def took(self, blocks: int) -> None:
        """Count blocks as being in host memory."""
        self._room -= blocks

    def gave_back(self, blocks: int) -> None:
        """Count blocks as no longer being there."""
        self._room += blocks

    def observe_swap(self, blocks: int, seconds: float) -> None:
        """Learn from blocks that were copied, either way."""
        measured = seconds / blocks
        self._block_s += (_WEIGHT if self._block_s else 1.0) * (measured - self._block_s)
