"""Guesses from the sequence's own text: what followed the same tokens before.

Text that is edited, quoted or filled into a form repeats itself and its prompt. The tokens at the
end are looked for further ahead; of the places where most of them agree the latest counts. What
followed there is the guess, and where that runs into the end it goes on in a circle: text that
repeats itself every few tokens is expected to go on doing so.

Source: apoorvumang/prompt-lookup-decoding (the idea).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ge_backend.tensors import Array
from ge_text.engine.sequence import Sequence
from ge_text.engine.speculation.base import Guess

__all__ = ["NgramDrafter", "look_up"]

SHORTEST = 2  # tokens that have to agree
LONGER = (4, 8)  # from these on a guess is stronger; more than the last are not compared


class NgramDrafter:
    """See the module. A `Drafter` without a memory: nothing can be out of date."""

    costly = False
    read_s = 0.0

    def draft(self, asked: Mapping[Sequence, int], *, read: bool) -> dict[Sequence, Guess]:
        """See `Drafter`."""
        del read
        found = {
            sequence: look_up(sequence.ids(0, sequence.num_tokens), most)
            for sequence, most in asked.items()
        }
        return {sequence: draft for sequence, draft in found.items() if draft is not None}


def look_up(ids: Array, most: int) -> Guess | None:
    """Return a guess of this many tokens behind `ids`, int64 [T]; None: there is none."""
    last = len(ids) - 1
    places = np.flatnonzero(ids[:last] == ids[last])
    agreeing = 1
    while agreeing < LONGER[-1]:
        further = places[places >= agreeing]
        further = further[ids[further - agreeing] == ids[last - agreeing]]
        if not len(further):
            break
        places = further
        agreeing += 1
    if not len(places) or agreeing < SHORTEST:
        return None
    behind = int(places[-1]) + 1
    tokens = ids[behind + np.arange(most) % (len(ids) - behind)]
    return Guess(tuple(tokens.tolist()), sum(agreeing >= least for least in LONGER))
