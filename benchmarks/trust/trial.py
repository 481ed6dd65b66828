"""One fault under load, and what came of it in figures."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.trust.faults import Fault
from benchmarks.trust.load import MODEL, Answer, Load
from benchmarks.trust.served import serving
from ge_tools.watch.scrape import scrape

__all__ = ["PUBLISHED_S", "SLOW_S", "Figures", "figures_of", "tried"]

# A gap between right answers that counts: shorter ones are what a busy machine has anyway.
GAP_S = 0.25
# An answer that takes longer is not as usual.
SLOW_S = 1.0
# The backend publishes its metrics every two seconds, where nothing was new before.
PUBLISHED_S = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What became of the requests that were sent while something went wrong.

    Attributes:
        requests, right, errors, lost, wrong: of all clients.
        recovery_s: the longest time in which the clients that ask all the time had no right answer;
            0 if it is not worth mentioning.
        longest_s: the longest that a request took.
        settled_s: from the end of the fault to the last answer that was wrong, an error, or slow.
        silent_s: from the last right answer until clients were told to stop.
        run: how many requests the backend says it took; None where a fault may repeat some.
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
    silent_s: float = 0.0
    run: int | None = None


def tried(fault: Fault, *, clients: int, before_s: float, after_s: float) -> Figures:
    """Return what comes of a fault, on a server of its own."""
    with serving(fault.parameters, fault.graph, fault.environment) as server:
        load = Load(server.grpc, clients, timeout_us=fault.timeout_us)
        time.sleep(before_s)
        further = fault.strike(server) or ()
        struck_s = time.monotonic()
        time.sleep(after_s)
        ended_s = time.monotonic()
        answers = load.close()
        found = figures_of(fault.name, answers, struck_s, further=further, ended_s=ended_s)
        if not fault.once:
            return found
        time.sleep(PUBLISHED_S)
        run = scrape(server.metrics).total("ge_requests_total", model=MODEL)
        return replace(found, run=round(run))


def figures_of(
    name: str,
    answers: Sequence[Answer],
    struck_s: float = 0.0,
    *,
    further: Sequence[Answer] = (),
    ended_s: float = 0.0,
) -> Figures:
    """Return the figures of a table's row.

    Args:
        name: of the fault.
        answers: of the clients that ask all the time.
        struck_s: when the fault was over, CLOCK_MONOTONIC.
        further: of others, which may have asked another server.
        ended_s: when clients were told to stop, on the same clock.
    """
    right = sorted(answer.done_s for answer in answers if answer.outcome == "right")
    times = [min((answer.sent_s for answer in answers), default=ended_s), *right]
    silent_s = max(0.0, ended_s - times[-1])
    gap_s = max([silent_s, *(b - a for a, b in itertools.pairwise(times))])
    answers = [*further, *answers]
    counts = Counter(answer.outcome for answer in answers)
    odd = (a.done_s for a in answers if a.outcome != "right" or a.took_s > SLOW_S)
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
        silent_s=silent_s,
    )
