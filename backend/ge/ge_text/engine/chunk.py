"""How many prompt tokens a step may have so that those who wait for their next one wait no longer.

A step takes as long as its decoding alone would, and more for each prompt token. Both are measured:
the first per number of rows (in powers of two), the second as what a step took beyond the first; a
row more than was measured counts as a prompt token does.
Prompts may add the target to a step, whatever its decoding takes: on a slow processor that is most
of a step, and prompts that had the rest of a given time would hardly get on. Where more texts wait
for their first token than for their next one, they may add as many times more, up to
`MAX_STRETCH`: what is lost to the few is less than what the many gain. Where none waits for a next
token a step takes as long as that, but has `ENOUGH` tokens in any case: of several prompts the
first ones answer while the others are read, who comes in the meantime waits no longer than for one
step, and more tokens at once are computed no faster on a processor. On an accelerator the budget
ends a step before its time does.
"""

from __future__ import annotations

__all__ = ["ChunkController"]

SMALLEST = 16  # prompts go on, whatever the target
FIRST = 128  # before anything is known
EVEN = 8  # tokens of a step are a multiple: engines make ready for each number that is new to them
ENOUGH = 256  # of this number each is computed as fast as of more at once
# Times the target that prompts take of a step at most; of 2, first tokens come 0.5 % sooner.
MAX_STRETCH = 1.5
_WEIGHT = 0.3  # of the latest measurement among those before it


class ChunkController:
    """Times in, a number of tokens out; pure.

    Args:
        fixed: the answer, whatever is measured; 0: by measurement.
        target_s: what prompts may add to a step while most wait for a next token.

    Attributes:
        token_s: what one prompt token costs; 0 before one was measured.
        budget: tokens of a step, or of the longest shape.
    """

    def __init__(self, *, fixed: int, budget: int, target_s: float) -> None:
        self.token_s = 0.0
        self._fixed = fixed
        self.budget = budget
        self._target_s = target_s
        self._decode_s: dict[int, float] = {}

    def tokens(self, decodes: int, newcomers: int = 0) -> int:
        """Return the prompt tokens of a step.

        Args:
            decodes: rows that get their next token.
            newcomers: texts that wait for their first one.
        """
        if self._fixed:
            return min(self._fixed, self.budget)
        if not decodes:
            held = int(MAX_STRETCH * self._target_s / self.token_s) if self.token_s else 0
            return min(max(ENOUGH, held), self.budget)
        if not self.token_s:
            return min(FIRST, self.budget)
        added_s = self._target_s * min(max(1.0, newcomers / decodes), MAX_STRETCH)
        even = (decodes + int(added_s / self.token_s)) // EVEN * EVEN - decodes
        return min(max(SMALLEST, even), self.budget)

    def observe(self, *, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from a step."""
        if not prompt_tokens:
            size = decodes.bit_length()
            self._decode_s[size] = _mean(self._decode_s.get(size, 0.0), seconds, _WEIGHT)
            return
        for size, known_s in self._decode_s.items():
            if size <= decodes.bit_length():  # a step with prompts on top shows an upper bound
                self._decode_s[size] = min(known_s, seconds)
        known_s, unknown = self._decoding(decodes)
        extra = max(seconds - known_s, 0.0) / (prompt_tokens + unknown)
        # Of a short chunk mostly noise is measured, and noise is what makes it slow.
        full = FIRST if extra > self.token_s else SMALLEST
        weight = _WEIGHT * min(1.0, prompt_tokens / full)
        self.token_s = _mean(self.token_s, extra, weight)

    def _decoding(self, decodes: int) -> tuple[float, int]:
        """Return what a step takes without prompts, as far as known, and for how many rows not."""
        size = decodes.bit_length()
        known = [(s, other) for other, s in self._decode_s.items() if other <= size]
        seconds, measured = max(known, default=(0.0, 0))
        return seconds, 0 if measured == size else decodes - 2**measured + 1


def _mean(former: float, latest: float, weight: float) -> float:
    return former + weight * (latest - former) if former else latest
