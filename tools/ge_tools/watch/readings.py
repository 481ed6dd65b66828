"""Two readings of a server's metrics, and what happened between them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

__all__ = ["DeviceLine", "Reading", "change", "device_lines", "grown"]

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
        return {value: sum(series) for value, series in self._by(name, label, matching).items()}

    def highest(self, name: str, label: str, **matching: str) -> dict[str, float]:
        """Return a metric by the values of a label, of series that cannot be added up."""
        return {value: max(series) for value, series in self._by(name, label, matching).items()}

    def gauge(self, name: str, of: Callable[[Iterable[float]], float] = max) -> dict[str, float]:
        """Return a gauge by device; each model tells of the whole, so one value of them counts."""
        return {device: of(series) for device, series in self._by(name, "device", {}).items()}

    def _by(self, name: str, label: str, matching: Mapping[str, str]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for (metric, labels), value in self.values.items():
            given = dict(labels)
            if metric == name and label in given and matching.items() <= given.items():
                found.setdefault(given[label], []).append(value)
        return found


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


def device_lines(before: Reading, after: Reading) -> list[DeviceLine]:
    """Return a line for each device, by name."""
    seconds = max(after.at_s - before.at_s, 1e-9)
    return [
        DeviceLine(
            device=device,
            up=after.gauge("ge_device_up", min).get(device, 0.0) > 0,
            outstanding_ms=1e3 * after.gauge("ge_device_outstanding_seconds").get(device, 0.0),
            busy=change(before, after, "ge_run_seconds_total", device=device) / seconds,
            pool_bytes=after.gauge("ge_workspace_pool_bytes").get(device, 0.0),
            used_bytes=after.gauge("ge_workspace_used_bytes").get(device, 0.0),
            peak_bytes=after.gauge("ge_workspace_peak_bytes").get(device, 0.0),
        )
        for device in after.by("ge_device_up", "device")
    ]


def change(before: Reading, after: Reading, name: str, **labels: str) -> float:
    """Return how much a counter grew; a series that fell began anew, with its model or server."""
    return _growth(before, after, name).total(name, **labels)


def grown(
    before: Reading, after: Reading, name: str, label: str, **labels: str
) -> dict[str, float]:
    """Return how much a counter grew by the values of a label, where it did."""
    grew = _growth(before, after, name).by(name, label, **labels)
    return {value: growth for value, growth in grew.items() if growth > 0}


def _growth(before: Reading, after: Reading, name: str) -> Reading:
    """Return by how much each series grew: their sum may fall where one of them is gone."""
    values: dict[tuple[str, Labels], float] = {}
    for key, now in after.values.items():
        if key[0] == name:
            then = before.values.get(key, 0.0)
            values[key] = now - then if now >= then else now
    return Reading(at_s=after.at_s, values=values)
