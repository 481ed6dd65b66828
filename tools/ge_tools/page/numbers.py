"""What a recording says in numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ge_backend.executor.protocol.messages import PastRun
from ge_tools.page.recording import Recording
from ge_tools.watch.models import ModelNumbers, model_numbers, ratio
from ge_tools.watch.readings import Reading, change, grown

__all__ = [
    "QUANTILES",
    "HostLatency",
    "RunLatency",
    "host_latencies",
    "quantile",
    "request_rates",
    "run_latencies",
    "served_models",
]

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLatency:
    """What the host says of whole requests to a model, its queue included.

    Attributes:
        quantiles_ms: over the host's own sliding window, of several versions the slowest one's;
            empty unless it was told to keep them.
    """

    model: str
    requests: float
    mean_ms: float
    queue_ms: float
    quantiles_ms: Mapping[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLatency:
    """How long runs of a model took in the executor, from their coming to their end.

    Attributes:
        filled: real rows for each row that ran; None where none has a bucket.
    """

    model: str
    runs: int
    failed: int
    filled: float | None
    queue_ms: Mapping[float, float]
    run_ms: Mapping[float, float]
    whole_ms: Mapping[float, float]


def served_models(recording: Recording) -> list[ModelNumbers]:
    """Return the numbers of each model that took requests, by name."""
    numbers = model_numbers(recording.first, recording.last)
    return [model for model in numbers if model.requests]


def host_latencies(recording: Recording) -> list[HostLatency]:
    """Return what the host says of each model that answered, ensembles too, by name."""
    first, last = recording.first, recording.last
    answered = grown(first, last, "nv_inference_request_success_total", "model")
    return [_of_host(model, answered[model], first, last) for model in sorted(answered)]


def run_latencies(runs: Iterable[PastRun]) -> list[RunLatency]:
    """Return the latencies of runs by model; preparations are left out."""
    by_model: dict[str, list[PastRun]] = {}
    for run in runs:
        if run.bucket:
            by_model.setdefault(run.model, []).append(run)
    return [_of_runs(model, by_model[model]) for model in sorted(by_model)]


def request_rates(readings: Sequence[Reading], model: str) -> list[tuple[float, float, float]]:
    """Return (from, to, requests per second) between readings; seconds since the first one."""
    begin_s = readings[0].at_s
    return [
        (
            before.at_s - begin_s,
            after.at_s - begin_s,
            change(before, after, "ge_requests_total", model=model)
            / max(after.at_s - before.at_s, 1e-9),
        )
        for before, after in pairwise(readings)
    ]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _of_host(model: str, requests: float, first: Reading, last: Reading) -> HostLatency:
    def mean_ms(name: str) -> float:
        return change(first, last, name, model=model) / requests / 1e3

    quantiles = last.highest("nv_inference_request_summary_us", "quantile", model=model)
    return HostLatency(
        model=model,
        requests=requests,
        mean_ms=mean_ms("nv_inference_request_duration_us_total"),
        queue_ms=mean_ms("nv_inference_queue_duration_us_total"),
        quantiles_ms={
            float(share): us / 1e3
            for share, us in quantiles.items()
            if float(share) in QUANTILES and math.isfinite(us)
        },
    )


def _of_runs(model: str, runs: Sequence[PastRun]) -> RunLatency:
    return RunLatency(
        model=model,
        runs=len(runs),
        failed=sum(bool(run.error) for run in runs),
        filled=ratio(sum(r.real_rows for r in runs), sum(r.bucket[0] for r in runs)),
        queue_ms=_quantiles([run.started_ns - run.came_ns for run in runs]),
        run_ms=_quantiles([run.ended_ns - run.started_ns for run in runs]),
        whole_ms=_quantiles([run.ended_ns - run.came_ns for run in runs]),
    )


def _quantiles(spans_ns: Sequence[int]) -> dict[float, float]:
    return {share: quantile(spans_ns, share) / 1e6 for share in QUANTILES}
