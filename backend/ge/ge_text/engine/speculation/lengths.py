"""How many drafts are worth verifying: pure arithmetic on what was measured.

A step that verifies takes longer, and brings a token more for each draft that is right. Drafts are
added, those first that are the likeliest to be right, and of all that number is taken that brings
the most tokens in a time; many texts at once, dear steps and poor guesses all make it smaller,
down to none.

Of drafts that are right with probability a, each if those before are, the n-th brings a^n tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["LEAST", "MARGIN", "choose_lengths"]

MARGIN = 1.15  # what drafts are taken to cost, times what was measured: measurements are noisy
LEAST = 1.06  # what all drafts of a step together have to gain, for the same reason


def choose_lengths(
    offers: Sequence[tuple[float, int]],
    *,
    rows: int,
    time: Callable[[int], float],
    lengths: Sequence[int],
    budget: int | None = None,
) -> list[int]:
    """Return how many drafts of each offer are verified; each is 0 or one of `lengths`.

    Args:
        offers: of each sequence: how probable it is that a draft is right, and how many there are.
        rows: sequences that get a token in this step anyway.
        time: of a step with a number of drafts in all, in times of a step with none.
        lengths: ascending. Few different ones are computed together in few groups.
        budget: drafts in all; None: no limit.
    """
    pieces = []
    for place, (right, most) in enumerate(offers):
        before = 0
        for length in lengths:
            if length <= most:
                gain = sum(right**number for number in range(before + 1, length + 1))
                pieces.append((-gain / (length - before), length - before, place, length))
                before = length
    pieces.sort()  # those of one offer stay in the order of length
    tokens, drafts, best, taken = float(rows), 0, LEAST * rows, 0
    for count, (less, size, _, _) in enumerate(pieces, 1):
        tokens -= less * size
        drafts += size
        if budget is not None and drafts > budget:
            break
        rate = tokens / (1 + MARGIN * (time(drafts) - 1))
        if rate > best:
            best, taken = rate, count
    chosen = [0] * len(offers)
    for _, _, place, length in pieces[:taken]:
        chosen[place] = length
    return chosen
