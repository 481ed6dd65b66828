"""The order in which sequences are served.

Each has a key that never changes, a time and the order of coming, so the order stays valid while
time goes on:

    fcfs       when it came
    sjf        when it came + a time per token of prompt and limit, where there is none, of prompt
               and what such texts are expected to get
    priority   when it came + a time per level of its priority

Linear ageing: what waits gains on what comes later at one second a second. So a request that is d
seconds behind, in tokens or levels, waits behind those that come within d seconds and no others.
Ties go to the one that came first.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from ge_text.engine.admission import LengthForecast
from ge_text.engine.request import GenerationRequest
from ge_text.engine.sequence import Sequence
from ge_text.engine.settings import EngineSettings, Scheduling

__all__ = ["enqueue", "key_offset_s"]

SJF_TOKENS = 1000  # as much as one level of priority


def key_offset_s(
    settings: EngineSettings,
    request: GenerationRequest,
    max_output: int,
    forecast: LengthForecast,
) -> float:
    """Return the seconds after its coming that a request's key says."""
    if settings.scheduling is Scheduling.PRIORITY:
        return request.parameters.priority * settings.aging_s
    if settings.scheduling is Scheduling.SJF:
        most = request.parameters.max_tokens or forecast.expected(request, max_output)
        return (len(request.prompt) + most) * settings.aging_s / SJF_TOKENS
    return 0.0


def enqueue(sequences: list[Sequence], sequence: Sequence) -> None:
    """Put a sequence among others where its key says, also one that was served before."""
    insort(sequences, sequence, key=attrgetter("key"))
