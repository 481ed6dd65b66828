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

from collections.abc import Callable
from operator import attrgetter

from ge_text.engine.admission import LengthForecast
from ge_text.engine.sequence import GenerationRequest
from ge_text.engine.settings import EngineSettings, Scheduling

__all__ = ["ORDER", "key_offset_s"]

SJF_TOKENS = 1000  # as much as one level of priority
# What a sequence is sorted by, also one that was served before.
ORDER = attrgetter("key")


def key_offset_s(
    settings: EngineSettings, forecast: LengthForecast
) -> Callable[[GenerationRequest, int], float]:
    """Return what says how many seconds after its coming the key of a request is.

    It takes the request and the tokens that a sample of it may have.
    """
    aging_s = settings.aging_s

    def shortest_first(request: GenerationRequest, max_output: int) -> float:
        most = request.parameters.max_tokens or forecast.expected(request, max_output)
        return (len(request.prompt) + most) * aging_s / SJF_TOKENS

    return {
        Scheduling.FCFS: lambda _request, _max_output: 0.0,
        Scheduling.SJF: shortest_first,
        Scheduling.PRIORITY: lambda request, _max_output: request.parameters.priority * aging_s,
    }[settings.scheduling]
