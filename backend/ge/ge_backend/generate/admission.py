"""How many blocks the sequences in flight will want at once: what a new one is admitted by.

Sequences end one after the other, the one with the fewest tokens to come first. Just before one
ends, it and all that last longer have grown by what it had left. The most tokens at any such moment
is the peak; it is far less than the sum of all maxima, and no less than what will be needed while
nobody grows longer than expected.

Source: ModelTC/lightllm, lightllm/server/router/req_queue (the estimate of token load).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from ge_backend.generate.sequence import Sequence

__all__ = ["LengthForecast", "PeakLoad"]

_WEIGHT = 0.05  # of the latest sequence among those before it


class LengthForecast:
    """How much of their limit sequences use, learned from those that ended; at first all of it."""

    def __init__(self) -> None:
        """Begin as if everybody used up the limit."""
        self.used = 1.0

    def observe(self, sequence: Sequence) -> None:
        """Learn from a sequence that ended by itself."""
        share = sequence.num_output / sequence.max_output
        self.used += _WEIGHT * (share - self.used)

    def failed(self) -> None:
        """Expect the worst again: somebody had to leave, so lengths were taken for too short."""
        self.used = 1.0

    def remaining(self, sequence: Sequence) -> int:
        """Return the tokens that a sequence is expected to get still, at least one."""
        expected = int(sequence.max_output * self.used) + 1 - sequence.num_output
        return max(1, min(expected, sequence.remaining))


class PeakLoad:
    """The sequences of a moment, and what one more would make of their peak.

    Counted in tokens, each sequence's last block as full as one can be.
    """

    def __init__(
        self, sequences: Iterable[Sequence], forecast: LengthForecast, block_size: int
    ) -> None:
        """Take in who is in flight."""
        self._forecast = forecast
        self._spare = block_size - 1
        self._loads = sorted(map(self._load, sequences))

    def with_one_more(self, sequence: Sequence) -> int:
        """Return the peak in tokens if this one joined, which it does not."""
        loads = self._loads.copy()
        insort(loads, self._load(sequence))
        peak = held = count = 0
        for minus_remaining, tokens, seats in loads:
            held += tokens
            count += seats
            peak = max(peak, held - minus_remaining * count)
        return peak

    def add(self, sequence: Sequence) -> None:
        """Let a sequence join."""
        insort(self._loads, self._load(sequence))

    def _load(self, sequence: Sequence) -> tuple[int, int, int]:
        """Return minus the tokens to come, so that the longest sorts first, those held, and seats.

        The prompt of a group counts with its first sequence.
        """
        seats, group = sequence.seats, sequence.group
        counted = 0 if group is None or group[0] is sequence else sequence.num_prompt
        held = sequence.num_tokens - counted + self._spare * seats
        # The last token is drawn and never computed, so it needs no room.
        return 1 - self._forecast.remaining(sequence), held, seats
