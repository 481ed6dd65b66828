"""Two readings of a server's metrics, and what happened between them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["DeviceLine", "ModelLine", "Reading", "device_lines", "model_lines"]

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All series of the backend at one time.

    Attributes:
        at_s: when, on any clock.
        values: (name, labels sorted by name) -> value.
    """

    at_s: float
    values: Mapping[tuple[str, Labels], float]

    def labels(self, name: str) -> list[str]:
        """Return the values of a label over all series, sorted."""
        found = {value for _, labels in self.values for key, value in labels if key == name}
        return sorted(found)

    def total(self, name: str, **wanted: str) -> float:
        """Return the sum of a metric's series that carry these labels."""
        return sum(
            value
            for (metric, labels), value in self.values.items()
            if metric == name and wanted.items() <= dict(labels).items()
        )

    def by(self, name: str, label: str, **wanted: str) -> dict[str, float]:
        """Return a metric's sums by the values of a label."""
        sums: dict[str, float] = {}
        for (metric, labels), value in self.values.items():
            given = dict(labels)
            if metric == name and label in given and wanted.items() <= given.items():
                sums[given[label]] = sums.get(given[label], 0.0) + value
        return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    """What a model did between two readings; ratios are None where nothing happened.

    Attributes:
        rows_per_batch: how many rows the host brought together.
        padding: elements run for each one that was sent.
        queue_ms, run_ms: per sub-batch.
        buckets: the most used ones, most used first.
    """

    model: str
    requests_per_s: float
    failures_per_s: float
    rows_per_batch: float | None
    padding: float | None
    queue_ms: float | None
    run_ms: float | None
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
    return [_model_line(name, before, after, num_buckets) for name in after.labels("model")]


def device_lines(before: Reading, after: Reading) -> list[DeviceLine]:
    """Return a line for each device, by name."""
    seconds = max(after.at_s - before.at_s, 1e-9)
    return [
        DeviceLine(
            device=device,
            up=_least(after, "ge_device_up", device) > 0,
            outstanding_ms=1e3 * _most(after, "ge_device_outstanding_seconds", device),
            busy=_change(before, after, "ge_run_seconds_total", device=device) / seconds,
            pool_bytes=_most(after, "ge_workspace_pool_bytes", device),
            used_bytes=_most(after, "ge_workspace_used_bytes", device),
            peak_bytes=_most(after, "ge_workspace_peak_bytes", device),
        )
        for device in after.by("ge_device_up", "device")
    ]


def _model_line(model: str, before: Reading, after: Reading, num_buckets: int) -> ModelLine:
    seconds = max(after.at_s - before.at_s, 1e-9)

    def change(name: str) -> float:
        return _change(before, after, name, model=model)

    runs = change("ge_sub_batches_total")
    ran = {
        bucket: count - before.by("ge_sub_batches_total", "bucket", model=model).get(bucket, 0.0)
        for bucket, count in after.by("ge_sub_batches_total", "bucket", model=model).items()
    }
    used = sorted((bucket for bucket in ran if ran[bucket] > 0), key=lambda b: (-ran[b], b))
    return ModelLine(
        model=model,
        requests_per_s=change("ge_requests_total") / seconds,
        failures_per_s=change("ge_request_failures_total") / seconds,
        rows_per_batch=_ratio(change("ge_rows_total"), change("ge_batches_total")),
        padding=_ratio(change("ge_elements_run_total"), change("ge_elements_real_total")),
        queue_ms=_ratio(1e3 * change("ge_queue_seconds_total"), runs),
        run_ms=_ratio(1e3 * change("ge_run_seconds_total"), runs),
        buckets=tuple(used[:num_buckets]),
    )


def _change(before: Reading, after: Reading, name: str, **labels: str) -> float:
    """Return how much a counter grew; one that fell began anew, with its server."""
    now, then = after.total(name, **labels), before.total(name, **labels)
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
