"""Two readings of a server's metrics, and what happened between them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = [
    "DeviceLine",
    "ModelLine",
    "Reading",
    "change",
    "device_lines",
    "grown",
    "model_lines",
    "plan_error",
]

Labels = tuple[tuple[str, str], ...]

OURS = "ge_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All series of the backend at one time, and the host's of its requests.

    Attributes:
        at_s: when, on any clock.
        values: (name, labels sorted by name) -> value.
    """

    at_s: float
    values: Mapping[tuple[str, Labels], float]

    @property
    def models(self) -> list[str]:
        """The models of this backend that have said anything, sorted."""
        ours = (dict(labels) for name, labels in self.values if name.startswith(OURS))
        return sorted({labels["model"] for labels in ours if "model" in labels})

    def total(self, name: str, **matching: str) -> float:
        """Return the sum of a metric's series that carry these labels."""
        return sum(
            value
            for (metric, labels), value in self.values.items()
            if metric == name and matching.items() <= dict(labels).items()
        )

    def by(self, name: str, label: str, **matching: str) -> dict[str, float]:
        """Return a metric's sums by the values of a label."""
        sums: dict[str, float] = {}
        for (metric, labels), value in self.values.items():
            given = dict(labels)
            if metric == name and label in given and matching.items() <= given.items():
                sums[given[label]] = sums.get(given[label], 0.0) + value
        return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    """What a model did between two readings; ratios are None where nothing happened.

    Attributes:
        rows_per_batch: how many rows the host brought together.
        padding: elements run for each one that was sent.
        queue_ms, run_ms: per sub-batch.
        plan_error: by how much runs took longer or shorter than planned, per time planned.
        buckets: the most used ones, most used first.
    """

    model: str
    requests_per_s: float
    failures_per_s: float
    rows_per_batch: float | None
    padding: float | None
    queue_ms: float | None
    run_ms: float | None
    plan_error: float | None
    buckets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLine:
    """A device as it was at the last reading, as its models see it.

    Attributes:
        busy: runs' time per second; above 1 where several lanes are busy.
        pool_bytes, used_bytes, peak_bytes: of the workspace pool; 0 where there is none.
    """

    device: str
    up: bool
    outstanding_ms: float
    busy: float
    pool_bytes: float
    used_bytes: float
    peak_bytes: float


def model_lines(before: Reading, after: Reading, *, num_buckets: int = 3) -> list[ModelLine]:
    """Return a line for each model, by name."""
    return [_model_line(name, before, after, num_buckets) for name in after.models]


def device_lines(before: Reading, after: Reading) -> list[DeviceLine]:
    """Return a line for each device, by name."""
    seconds = max(after.at_s - before.at_s, 1e-9)
    return [
        DeviceLine(
            device=device,
            up=_least(after, "ge_device_up", device) > 0,
            outstanding_ms=1e3 * _most(after, "ge_device_outstanding_seconds", device),
            busy=change(before, after, "ge_run_seconds_total", device=device) / seconds,
            pool_bytes=_most(after, "ge_workspace_pool_bytes", device),
            used_bytes=_most(after, "ge_workspace_used_bytes", device),
            peak_bytes=_most(after, "ge_workspace_peak_bytes", device),
        )
        for device in after.by("ge_device_up", "device")
    ]


def _model_line(model: str, before: Reading, after: Reading, num_buckets: int) -> ModelLine:
    seconds = max(after.at_s - before.at_s, 1e-9)

    def changed(name: str) -> float:
        return change(before, after, name, model=model)

    runs = changed("ge_sub_batches_total")
    ran = grown(before, after, "ge_sub_batches_total", "bucket", model=model)
    used = sorted(ran, key=lambda bucket: (-ran[bucket], bucket))
    return ModelLine(
        model=model,
        requests_per_s=changed("ge_requests_total") / seconds,
        failures_per_s=changed("ge_request_failures_total") / seconds,
        rows_per_batch=_ratio(changed("ge_rows_total"), changed("ge_batches_total")),
        padding=_ratio(changed("ge_elements_run_total"), changed("ge_elements_real_total")),
        queue_ms=_ratio(1e3 * changed("ge_queue_seconds_total"), runs),
        run_ms=_ratio(1e3 * changed("ge_run_seconds_total"), runs),
        plan_error=plan_error(before, after, model),
        buckets=tuple(used[:num_buckets]),
    )


def change(before: Reading, after: Reading, name: str, **labels: str) -> float:
    """Return how much a counter grew; one that fell began anew, with its server."""
    return _growth(before.total(name, **labels), after.total(name, **labels))


def plan_error(before: Reading, after: Reading, model: str) -> float | None:
    """Return by how much a model's runs took longer or shorter than planned, per time planned."""
    off = change(before, after, "ge_plan_error_seconds_total", model=model)
    return _ratio(off, change(before, after, "ge_planned_seconds_total", model=model))


def grown(
    before: Reading, after: Reading, name: str, label: str, **labels: str
) -> dict[str, float]:
    """Return how much a counter grew by the values of a label, where it did."""
    then = before.by(name, label, **labels)
    now = after.by(name, label, **labels)
    grew = {value: _growth(then.get(value, 0.0), count) for value, count in now.items()}
    return {value: growth for value, growth in grew.items() if growth > 0}


def _growth(then: float, now: float) -> float:
    return now - then if now >= then else now


def _ratio(value: float, of: float) -> float | None:
    return value / of if of else None


def _most(reading: Reading, name: str, device: str) -> float:
    return max(_of_device(reading, name, device), default=0.0)


def _least(reading: Reading, name: str, device: str) -> float:
    return min(_of_device(reading, name, device), default=0.0)


def _of_device(reading: Reading, name: str, device: str) -> Iterable[float]:
    """Yield what each model says of a device; each of them sees the whole."""
    return (
        value
        for (metric, labels), value in reading.values.items()
        if metric == name and dict(labels).get("device") == device
    )
