"""What was found out about one assumption: a frozen value, and as a line of a table."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COLUMNS", "FAILS", "HOLDS", "LATE", "NOT_TESTED", "TAKEN", "Verdict"]

HOLDS = "holds"
FAILS = "does not hold"
NOT_TESTED = "not tested"
LATE = "not tested in time"
TAKEN = "taken as given"

COLUMNS = ("assumption", "how tested", "figure", "verdict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One assumption of one model.

    Attributes:
        assumption: its name, as the parameter `assume` takes it.
        tested: how.
        figure: the largest difference found, or the sizes; "" where there is none.
        verdict: `holds`, `does not hold`, `not tested`, `not tested in time` or `taken as given`.
        consequence: what is done about it; "" where nothing has to be.
    """

    assumption: str
    tested: str
    figure: str
    verdict: str
    consequence: str = ""

    @property
    def holds(self) -> bool:
        """Whether serving may rest on it: it was not found to be wrong."""
        return self.verdict != FAILS

    @property
    def late(self) -> bool:
        """Whether there was no time to find it out; another start may have it."""
        return self.verdict == LATE

    @property
    def doubtful(self) -> bool:
        """Whether it is not to be relied on unless that was asked for."""
        return self.late or not self.holds

    def line(self) -> str:
        """Return it as one line, for the log."""
        figure = f" ({self.figure})" if self.figure else ""
        then = f": {self.consequence}" if self.consequence else ""
        return f"assumption {self.assumption!r} {self.verdict}{figure}{then}"

    @property
    def cells(self) -> tuple[str, ...]:
        """It as a row of a table, under `COLUMNS`."""
        then = f": {self.consequence}" if self.consequence else ""
        return (self.assumption, self.tested, self.figure or "-", f"{self.verdict}{then}")
