"""How often drafts are right, by what was seen.

A draft is tested where it stands behind right ones only: it was right, or it is the first that was
not. Those behind a wrong one were never tested, and the token in its place was no draft. The latest
tests count most. A sequence is first expected to be like all others; its own tests soon outweigh
them. Each strength of drafts is counted by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ge_text.engine.speculation.base import STRENGTHS

__all__ = ["Acceptance"]

_OF_ALL, _OF_ONE = 200.0, 20.0  # tests that are remembered
_LIKE_OTHERS = 4.0  # tests of others that weigh as much as one's own


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
    """The expectation for one sequence; `of_all` is shared by those of an engine, or None."""

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
