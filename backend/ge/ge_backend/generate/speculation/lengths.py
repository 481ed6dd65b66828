"""How many drafts are worth verifying: pure arithmetic on what was measured.

A step that verifies takes longer by a share of its time per draft, and brings a token more for each
that is right. A draft is worth it while it adds more to the step's tokens, in proportion, than to
its time; so many texts at once, costly steps and poor guesses all make it fewer, down to none.

Of drafts that are right with probability a, each if those before are, the n-th brings a^n tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["MARGIN", "choose_lengths"]

MARGIN = 1.15  # what a draft has to bring for its cost: measurements are noisy, and steps cost more


def choose_lengths(
    offers: Sequence[tuple[float, int]],
    *,
    rows: int,
    share: float,
    lengths: Sequence[int],
    budget: int | None = None,
) -> list[int]:
    """Return how many drafts of each offer are verified; each is 0 or one of `lengths`.

    Args:
        offers: of each sequence: how probable it is that a draft is right, and how many there are.
        rows: sequences that get a token in this step anyway.
        share: what a draft adds to the time of the step without any, of which it is a part.
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
    chosen = [0] * len(offers)
    tokens, time, left = float(rows), 1.0, budget
    for less, size, place, length in sorted(pieces):  # of one offer in the order of length
        if -less <= MARGIN * share * tokens / time or (left is not None and size > left):
            break
        chosen[place] = length
        tokens -= less * size
        time += share * size
        left = None if left is None else left - size
    return chosen
