"""How many blocks the sequences in flight will want at once: what a new one is admitted by.

Sequences end one after the other, the one with the fewest tokens to come first. Just before one
ends, it and all that last longer have grown by what it had left. The most tokens at any such moment
is the peak; it is far less than the sum of all maxima, and no less than what will be needed while
none grows longer than expected.

A block that several read is there once, and for as long as the last of them: it counts with that
one alone.

Source: ModelTC/lightllm, lightllm/server/router/req_queue (the estimate of token load).
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from operator import attrgetter

from ge_text.engine.sequence import GenerationRequest, Sequence

__all__ = ["LengthForecast", "PeakLoad"]

_FIRST = 512  # tokens that are expected before any sequence has ended
_WEIGHT = 0.05  # of the latest sequence among those before it
_NO_LIMIT = 0  # the class of requests that name none; limits have a bit at least


class LengthForecast:
    """How many tokens sequences get, learned from those that ended.

    Each class of limit by itself, as a limit of 16 is used up more often than one of 4000: limits
    of as many binary digits are a class, and no limit is one. What a model holds says nothing of a
    text, so a class begins with some tokens and not with all that there may be.
    """

    def __init__(self) -> None:
        self._lengths: dict[int, float] = {}

    def expected(self, request: GenerationRequest, max_output: int) -> int:
        """Return the tokens that a sample of a request is expected to get in all, at least one."""
        length = self._length(_class_of(request, max_output))
        return max(1, min(max_output, round(length)))

    def remaining(self, sequence: Sequence) -> int:
        """Return the tokens that a sequence is expected to get still, at least one.

        One that has outgrown what was expected is no closer to its end for it: it is expected to
        become twice, or four times, as long.
        """
        expected = self.expected(sequence.request, sequence.max_output)
        while expected <= sequence.num_output:
            expected *= 2
        return max(1, min(expected, sequence.max_output) - sequence.num_output)

    def observe(self, sequence: Sequence) -> None:
        """Learn from a sequence that ended by itself."""
        kind = _class_of(sequence.request, sequence.max_output)
        length = self._length(kind)
        self._lengths[kind] = length + _WEIGHT * (sequence.num_output - length)

    def failed(self, sequences: Many[Sequence]) -> None:
        """Note that one of these had to leave, for those with more tokens than was expected.

        Their classes are expected to become twice as long, within their limits. Where there are
        none, more was expected since the sequences joined, and that is enough.
        """
        limits: dict[int, int] = {}
        for one in sequences:
            if one.num_output >= self.expected(one.request, one.max_output):
                kind = _class_of(one.request, one.max_output)
                limits[kind] = max(limits.get(kind, 0), one.max_output)
        for kind, most in limits.items():
            self._lengths[kind] = min(2 * self._length(kind), most)

    def _length(self, kind: int) -> float:
        """Return what a class gets; one of which none has ended has what it may have, or some."""
        first = min(_FIRST, 2**kind - 1) if kind else _FIRST
        return self._lengths.get(kind, first)


@dataclass(slots=True, eq=False)
class _Load:
    """What one sequence takes.

    Attributes:
        minus_growth: minus the tokens to come that need room, so that the longest sorts first.
        tokens: held, but for those in blocks that count with others.
        num_beams: sequences that it may become.
        blocks: those of its own that are not written to again.
    """

    minus_growth: int
    tokens: int
    num_beams: int
    blocks: Many[int]


class PeakLoad:
    """The sequences of a moment, and what one more would make of their peak.

    Counted in tokens, each sequence's last block as full as one can be.
    """

    def __init__(
        self, sequences: Iterable[Sequence], forecast: LengthForecast, block_size: int
    ) -> None:
        self._forecast = forecast
        self._block_size = block_size
        self._loads: list[_Load] = []
        # Texts that share blocks share the first. So who is the only one with his is not asked for
        # the others, of which there are thousands in a large cache.
        self._alone: dict[int, _Load] = {}
        self._holders: dict[int, _Load] = {}  # of blocks: with whom each counts
        # The longest first: a block stays with whom it is noted with.
        for sequence in sorted(sequences, key=forecast.remaining, reverse=True):
            self.add(sequence)

    def with_one_more(self, sequence: Sequence, found: Many[int] = ()) -> int:
        """Return the peak in tokens if this one joined, which it does not.

        Args:
            sequence: has no blocks yet.
            found: full blocks that it would begin with; others may have them, too.
        """
        one = self._load(sequence, found)
        moved: Counter[_Load] = Counter()
        for block in found if self._knows(found) else ():
            holder = self._holders.get(block, one)
            if holder.minus_growth > one.minus_growth:
                moved[holder] += self._block_size
            elif holder is not one:
                one.tokens -= self._block_size
        loads = self._loads.copy()
        insort(loads, one, key=_minus_growth)
        peak = held = count = 0
        for load in loads:
            held += load.tokens - moved[load]
            count += load.num_beams
            peak = max(peak, held - load.minus_growth * count)
        return peak

    def add(self, sequence: Sequence) -> None:
        """Let a sequence join, which has its blocks."""
        full = sequence.num_computed // self._block_size
        load = self._load(sequence, sequence.blocks[:full])
        insort(self._loads, load, key=_minus_growth)
        if self._knows(load.blocks):
            self._share(load)
        elif load.blocks:
            self._alone[load.blocks[0]] = load

    def _knows(self, blocks: Many[int]) -> bool:
        """Return whether a load has the first of these blocks; then all of its are noted."""
        if blocks and (alone := self._alone.pop(blocks[0], None)):
            self._share(alone)
        return bool(blocks) and blocks[0] in self._holders

    def _share(self, load: _Load) -> None:
        """Note a sequence's blocks; those of others count with the one that lasts longer."""
        holders = self._holders
        shared = 0
        for block in load.blocks:
            holder = holders.setdefault(block, load)
            if holder is load:
                continue
            if holder.minus_growth <= load.minus_growth:
                shared += 1
            else:
                holder.tokens -= self._block_size
                holders[block] = load
        load.tokens -= shared * self._block_size

    def _load(self, sequence: Sequence, blocks: Many[int]) -> _Load:
        held = sequence.num_tokens + (self._block_size - 1) * sequence.num_beams
        # The last token is drawn and never computed, so it needs no room.
        return _Load(1 - self._forecast.remaining(sequence), held, sequence.num_beams, blocks)


_minus_growth = attrgetter("minus_growth")


def _class_of(request: GenerationRequest, max_output: int) -> int:
    """Return which requests are expected to be as long as this one."""
    return _NO_LIMIT if request.parameters.max_tokens is None else max_output.bit_length()
