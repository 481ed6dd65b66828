"""One fault under load, and what came of it in figures."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.trust.faults import Fault
from benchmarks.trust.load import Answer, Load
from benchmarks.trust.served import serving

__all__ = ["Figures", "figures_of", "tried"]

# A gap between right answers that counts: shorter ones are what a busy machine has anyway.
GAP_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What became of the requests that were sent while something went wrong.

    Attributes:
        recovery_s: the longest time without a right answer; 0 if it is not worth mentioning.
        longest_s: the longest that a request took.
    """

    name: str
    requests: int
    right: int
    errors: int
    lost: int
    wrong: int
    recovery_s: float
    longest_s: float


def tried(fault: Fault, *, clients: int, before_s: float, after_s: float) -> Figures:
    """Return what comes of a fault, on a server of its own."""
    with serving(fault.parameters, fault.graph, fault.environment) as server:
        load = Load(server.grpc, clients, timeout_us=fault.timeout_us)
        time.sleep(before_s)
        fault.strike(server)
        time.sleep(after_s)
        return figures_of(fault.name, load.close())


def figures_of(name: str, answers: Sequence[Answer]) -> Figures:
    """Return the figures of a table's row."""
    counts = Counter(answer.outcome for answer in answers)
    right = sorted(answer.done_s for answer in answers if answer.outcome == "right")
    gap_s = max((b - a for a, b in itertools.pairwise(right)), default=0.0)
    return Figures(
        name=name,
        requests=len(answers),
        right=counts["right"],
        errors=counts["error"],
        lost=counts["lost"],
        wrong=counts["wrong"],
        recovery_s=gap_s if gap_s > GAP_S else 0.0,
        longest_s=max((answer.took_s for answer in answers), default=0.0),
    )
