"""What models did between two readings of a server's metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ge_backend.serving.warmup.verdict import FAILS
from ge_tools.watch.readings import Reading, change, grown

__all__ = ["EXECUTOR_PARTS", "INSTANCE_PARTS", "ModelNumbers", "model_numbers", "ratio"]

# What an instance does one after another, and what happens in the executor while it waits.
INSTANCE_PARTS = ("read", "plan", "stage", "wait", "split")
EXECUTOR_PARTS = ("queue", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNumbers:
    """A model; ratios are None where nothing can be said.

    Attributes:
        rows_per_batch: how many rows the host brought together.
        padding: elements run for each one that was sent.
        longest: what it would have been with each batch padded to its longest row.
        plan_error: by how much runs took longer or shorter than planned, per time planned.
        queue_ms, run_ms: per sub-batch.
        sizes: per ragged axis, rows by the bin of their size, ascending; see `ge_row_sizes_total`.
        buckets: runs by bucket, most used first.
        engine: what runs it now; "" where that is not told, as of a whole fused ensemble.
        not_so: what was assumed of it and does not hold.
        parts_ms: milliseconds per request by part; see `INSTANCE_PARTS`, `EXECUTOR_PARTS`. Empty
            where no request came, as `steps_ms`.
        steps_ms: of a fused ensemble, by step.
    """

    model: str
    requests: float
    failures: float
    rows: float
    batches: float
    runs: float
    requests_per_s: float
    failures_per_s: float
    rows_per_batch: float | None
    padding: float | None
    longest: float | None
    plan_error: float | None
    queue_ms: float | None
    run_ms: float | None
    sizes: Mapping[str, Sequence[tuple[int, float]]]
    buckets: Sequence[tuple[str, float]]
    engine: str
    not_so: Sequence[str]
    parts_ms: Mapping[str, float]
    steps_ms: Mapping[str, float]


def model_numbers(before: Reading, after: Reading) -> list[ModelNumbers]:
    """Return the numbers of each model of this backend, by name."""
    return [_numbers(model, before, after) for model in after.models]


def ratio(value: float, of: float) -> float | None:
    """Return a ratio; None to nothing."""
    return value / of if of else None


def _numbers(model: str, before: Reading, after: Reading) -> ModelNumbers:
    def changed(name: str) -> float:
        return change(before, after, f"ge_{name}_total", model=model)

    def by(name: str, label: str, **labels: str) -> dict[str, float]:
        return grown(before, after, f"ge_{name}_total", label, model=model, **labels)

    seconds = max(after.at_s - before.at_s, 1e-9)
    requests, failures = changed("requests"), changed("request_failures")
    rows, batches, runs = changed("rows"), changed("batches"), changed("sub_batches")
    real = changed("elements_real")
    engines = after.by("ge_engine_info", "engine", model=model)
    parts = {part: changed(f"{part}_seconds") for part in (*INSTANCE_PARTS, *EXECUTOR_PARTS)}
    return ModelNumbers(
        model=model,
        requests=requests,
        failures=failures,
        rows=rows,
        batches=batches,
        runs=runs,
        requests_per_s=requests / seconds,
        failures_per_s=failures / seconds,
        rows_per_batch=ratio(rows, batches),
        padding=ratio(changed("elements_run"), real),
        longest=ratio(changed("elements_longest"), real),
        plan_error=ratio(changed("plan_error_seconds"), changed("planned_seconds")),
        queue_ms=ratio(1e3 * parts["queue"], runs),
        run_ms=ratio(1e3 * parts["run"], runs),
        sizes={
            axis: sorted((int(size), n) for size, n in by("row_sizes", "up_to", axis=axis).items())
            for axis in sorted(after.by("ge_row_sizes_total", "axis", model=model))
        },
        buckets=sorted(by("sub_batches", "bucket").items(), key=lambda item: (-item[1], item[0])),
        engine=", ".join(sorted(name for name, on in engines.items() if on)),
        not_so=sorted(
            name
            for name, on in after.by(
                "ge_assumption_info", "assumption", model=model, verdict=FAILS
            ).items()
            if on
        ),
        parts_ms=_per_request(parts, requests),
        steps_ms=_per_request(by("step_seconds", "step"), requests),
    )


def _per_request(seconds: Mapping[str, float], requests: float) -> dict[str, float]:
    return {part: 1e3 * spent / requests for part, spent in seconds.items()} if requests else {}
