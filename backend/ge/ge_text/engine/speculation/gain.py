"""What drafts gain: how often they are right, how many are worth verifying, what they may lose.

Pure arithmetic on what was measured.

A step that verifies takes longer, and brings a token more for each draft that is right. Drafts are
added, those first that are the likeliest to be right, and of all that number is taken that brings
the most tokens in a time; many texts at once, dear steps and poor guesses all make it smaller,
down to none.

Of drafts that are right with probability a, each if those before are, the n-th brings a^n tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ge_text.engine.speculation.base import STRENGTHS

__all__ = ["LEAST", "MARGIN", "Acceptance", "SpeculationBudget", "choose_lengths"]

MARGIN = 1.15  # what drafts are taken to cost, times what was measured: measurements are noisy
LEAST = 1.06  # what all drafts of a step together have to gain, for the same reason
_OF_ALL, _OF_ONE = 200.0, 20.0  # tests that are remembered
_LIKE_OTHERS = 4.0  # tests of others that weigh as much as one's own
SHARE = 0.02  # of all steps
FIRST, MOST = 4.0, 64.0  # before anything was gained, and however much was
DEBT = 4.0  # of guesses that seemed worth it; then there are none
_STALL = 8.0  # what takes this many steps was held up by something else


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


@dataclass(slots=True)
class _Share:
    """The share of tests that were passed, the old ones fading."""

    memory: float
    passed: float = 0.0
    tests: float = 0.0

    def add(self, passed: int, tests: int) -> None:
        kept = (1 - 1 / self.memory) ** tests
        self.passed = self.passed * kept + passed
        self.tests = self.tests * kept + tests

    def blended(self, other: float, weight: float) -> float:
        """Return the share, as if more tests had passed as often as `other` says."""
        return (self.passed + other * weight) / (self.tests + weight)


@dataclass(slots=True)
class Acceptance:
    """How often drafts of one sequence are right, by what was seen.

    A draft is tested where it stands behind right ones only: it was right, or it is the first that
    was not. Those behind a wrong one were never tested, and the token in its place was no draft.
    The latest tests count most. A sequence is first expected to be like all others; its own tests
    soon outweigh them. Each strength of drafts is counted by itself.

    Args:
        of_all: shared by those of an engine, or None.
    """

    of_all: Acceptance | None = None
    _shares: list[_Share] = field(init=False)

    def __post_init__(self) -> None:
        memory = _OF_ALL if self.of_all is None else _OF_ONE
        self._shares = [_Share(memory) for _ in range(STRENGTHS)]

    def expected(self, strength: int) -> float:
        """Return how probable it is that a draft is right, if those before it are."""
        if self.of_all is None:
            return self._shares[strength].blended((strength + 1) / (STRENGTHS + 1), _LIKE_OTHERS)
        return self._shares[strength].blended(self.of_all.expected(strength), _LIKE_OTHERS)

    def observe(self, strength: int, *, right: int, tested: int) -> None:
        """Learn from drafts: `right` of `tested` were, at most one of them was not."""
        self._shares[strength].add(right, tested)
        if self.of_all is not None:
            self.of_all.observe(strength, right=right, tested=tested)


class SpeculationBudget:
    """The steps that speculation may still cost: it has to gain some, and has a share of all time.

    Trying whether guesses pay costs time, and so does making a drafter acquainted with a text. Both
    are paid from here, and what verified guesses gain comes in. So trials that fail cost that share
    in the long run, whatever is measured wrongly and however often texts change. Counted in steps
    without drafts.
    """

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
