"""What steps take with drafts and without, as measured while serving.

Kept as what a draft adds to a step, as a share of that step without drafts: the share hardly
changes while texts grow, and neither when everything on the machine becomes slower. It is kept for
batches of about one size and one number of drafts, as the first draft of a step costs more than
the others.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StepCosts"]

REFRESH = 32  # steps with drafts that one without is compared to, before it is measured again
# Of the latest measurement among those before it: what is shorter is nearer to the truth, as what
# makes a step longer is mostly something else on the machine.
_DOWN, _UP = 0.4, 0.15
_DOUBLED = 0.7  # of a share, for twice the drafts ever tried: little enough that they will be
_BOLD = 4  # times the drafts ever tried are tried at once, and no more
_STALL = 3.0  # what takes this many times as long was held up


@dataclass(slots=True)
class _Plain:
    """A step without drafts: its seconds, and how many others were compared to it since."""

    seconds: float
    compared: int = 0


class StepCosts:
    """Seconds in, shares out."""

    def __init__(self) -> None:
        self._plain: dict[int, _Plain] = {}
        self._shares: dict[int, dict[int, float]] = {}

    def is_known(self, rows: int) -> bool:
        """Return whether a step of this many rows without drafts was measured, not long ago."""
        plain = self._plain.get(rows)
        return plain is not None and plain.compared < REFRESH

    def in_plain_steps(self, rows: int, seconds: float) -> float:
        """Return a time in steps of this many rows without drafts; 0 where none was measured."""
        plain = self._plain.get(rows)
        return seconds / plain.seconds if plain is not None else 0.0

    def most(self, rows: int, *, bold: bool) -> int:
        """Return how many drafts a step of about this many rows may have; 0: none was measured.

        `bold`: it may be more than was ever tried.
        """
        shares = self._shares.get(rows.bit_length())
        if not shares:
            return 0
        tried: int = 2 ** max(shares)
        return _BOLD * tried if bold else tried - 1

    def time(self, rows: int, drafts: int) -> float:
        """Return what a step takes with drafts, in times of one without; `most` may not be 0."""
        shares, size = self._shares[rows.bit_length()], drafts.bit_length()
        nearest = min(shares, key=lambda known: abs(known - size))
        return 1 + shares[nearest] * _DOUBLED ** max(0, size - nearest) * drafts

    def observe(self, rows: int, drafts: int, seconds: float) -> None:
        """Learn from a step of decoding alone."""
        plain = self._plain.get(rows)
        if plain is None:
            if not drafts:
                self._plain[rows] = _Plain(seconds)
        elif not drafts:
            plain.seconds = _nearer(plain.seconds, min(seconds, _STALL * plain.seconds))
            plain.compared = 0
        else:
            plain.compared += 1
            shares, size = self._shares.setdefault(rows.bit_length(), {}), drafts.bit_length()
            measured = max(0.0, min(seconds / plain.seconds, _STALL + drafts) - 1) / drafts
            shares[size] = _nearer(shares.get(size, measured), measured)


def _nearer(known: float, measured: float) -> float:
    return known + (_DOWN if measured < known else _UP) * (measured - known)
