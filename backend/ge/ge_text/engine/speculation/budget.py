"""What speculation may lose: what it has gained lately, and a small share of all time.

Trying whether guesses pay costs time, and so does making a drafter acquainted with a text. Both are
paid from here, and what verified guesses gain comes in. So trials that fail cost that share in the
long run, whatever is measured wrongly and however often texts change. Counted in steps without
drafts.
"""

from __future__ import annotations

__all__ = ["SpeculationBudget"]

SHARE = 0.02  # of all steps
FIRST, MOST = 4.0, 64.0  # before anything was gained, and however much was
DEBT = 4.0  # of guesses that seemed worth it; then there are none
_STALL = 8.0  # what takes this many steps was held up by something else


class SpeculationBudget:
    """The steps that speculation may still cost, before it has to gain some."""

    def __init__(self) -> None:
        self._steps = FIRST

    @property
    def for_trials(self) -> bool:
        """Whether something may be tried."""
        return self._steps > 0

    @property
    def for_guesses(self) -> bool:
        """Whether guesses may be verified that seem to be worth it."""
        return self._steps > -DEBT

    def take(self, gained: float) -> None:
        """Note what a step has gained, or lost: less than 0; with its share of time."""
        self._steps = min(MOST, self._steps + SHARE + max(-_STALL, gained))
