"""Those that wait, in the order in which they are served.

Each has a key that never changes, so the order stays valid while time goes on:

    fcfs       when it came
    sjf        when it came + a time per token of prompt and limit
    priority   when it came + a time per level of its priority

Linear ageing: whoever waits gains on those that come later at one second a second. So whoever is d
seconds behind, in tokens or levels, waits behind those that come within d seconds and no others.
Ties go to who came first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from ge_backend.generate.intake import Arrived
from ge_backend.generate.sequence import Sequence
from ge_backend.generate.settings import EngineSettings, Scheduling

__all__ = ["WaitingQueue", "service_key"]

SJF_TOKENS = 1000  # as much as one level of priority


def service_key(settings: EngineSettings, arrived: Arrived, number: int) -> tuple[float, int]:
    """Return a key of a sequence: smaller is served earlier; `number` is the order of coming."""
    request = arrived.request
    handicap_s = 0.0
    if settings.scheduling is Scheduling.PRIORITY:
        handicap_s = request.parameters.priority * settings.aging_s
    elif settings.scheduling is Scheduling.SJF:
        length = len(request.prompt) + arrived.max_output
        handicap_s = length * settings.aging_s / SJF_TOKENS
    return arrived.at_s + handicap_s, number


class WaitingQueue:
    """Sequences by their keys. Not for several threads."""

    def __init__(self) -> None:
        """Begin empty."""
        self._entries: list[tuple[tuple[float, int], Sequence]] = []

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        """Yield those that wait, the next one first."""
        return (sequence for _, sequence in self._entries)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait where its key says, also one that was served before."""
        insort(self._entries, (sequence.key, sequence))

    def first(self) -> Sequence:
        """Return who is next; there has to be somebody."""
        return self._entries[0][1]

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out that waits."""
        del self._entries[bisect_left(self._entries, (sequence.key,))]
