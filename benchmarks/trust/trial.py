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
# An answer that takes longer is not as usual.
SLOW_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What became of the requests that were sent while something went wrong.

    Attributes:
        recovery_s: the longest time without a right answer; 0 if it is not worth mentioning.
        longest_s: the longest that a request took.
        settled_s: from the end of the fault to the last answer that was wrong, an error, or slow.
    """

    name: str
    requests: int
    right: int
    errors: int
    lost: int
    wrong: int
    recovery_s: float
    longest_s: float
    settled_s: float = 0.0


def tried(fault: Fault, *, clients: int, before_s: float, after_s: float) -> Figures:
    """Return what comes of a fault, on a server of its own."""
    with serving(fault.parameters, fault.graph, fault.environment) as server:
        load = Load(server.grpc, clients, timeout_us=fault.timeout_us)
        time.sleep(before_s)
        further = fault.strike(server) or ()
        struck_s = time.monotonic()
        time.sleep(after_s)
        return figures_of(fault.name, [*further, *load.close()], struck_s)


def figures_of(name: str, answers: Sequence[Answer], struck_s: float = 0.0) -> Figures:
    """Return the figures of a table's row.

    Args:
        name: of the fault.
        answers: of all clients.
        struck_s: when the fault was over, CLOCK_MONOTONIC.
    """
    counts = Counter(answer.outcome for answer in answers)
    right = sorted(answer.done_s for answer in answers if answer.outcome == "right")
    odd = (a.done_s for a in answers if a.outcome != "right" or a.took_s > SLOW_S)
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
        settled_s=max(0.0, max(odd, default=0.0) - struck_s),
    )
