"""The seam between speculation and those who guess."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ge_text.engine.sequence import Sequence

__all__ = ["STRENGTHS", "SUREST", "Drafter", "Guess"]

STRENGTHS = 3
SUREST = STRENGTHS - 1


@dataclass(frozen=True, slots=True)
class Guess:
    """A guess at the next tokens of a sequence.

    Attributes:
        tokens: at least one.
        strength: how sure its drafter is, from 0 to below `STRENGTHS`. What that is worth is
            learned for each by itself.
    """

    tokens: tuple[int, ...]
    strength: int = 0


class Drafter(Protocol):
    """Guesses. Whatever it says changes no text, only how soon the text comes.

    Attributes:
        costly: each token that it guesses takes time, so it is asked for as many as are wanted;
            else it is asked for the most that there may be, and some are left unused. Its guesses
            are of the highest strength.
        read_s: seconds that `draft` took last to get to know texts, which it does once for each.
    """

    costly: bool
    read_s: float

    def draft(self, asked: Mapping[Sequence, int], *, read: bool) -> dict[Sequence, Guess]:
        """Return guesses at the tokens behind the known ones.

        Args:
            asked: sequences, and of how many tokens a guess is wanted, at least one. Who has no
                guess leaves a sequence out.
            read: whether it may take time to get to know texts.
        """
