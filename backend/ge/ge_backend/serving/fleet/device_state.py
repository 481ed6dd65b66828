"""A device as its executor shows it now, and the gauges that tell of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ge_backend.device.health import Health
from ge_backend.executor.protocol.outstanding import OutstandingView, PoolSample
from ge_backend.metrics import Recorder

__all__ = ["DeviceState"]

# What an executor showed that beats no more, as one does that has ended, was true then.
STALE_NS = 5_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """One device as it is now; all but `up` is the same for all models there."""

    device: str
    up: bool
    outstanding_ns: int = 0
    pool: PoolSample = field(default_factory=PoolSample)
    health: Health = field(default_factory=Health)
    memory_bytes: int = 0

    @classmethod
    def of(cls, device: str, shown: OutstandingView | None, *, up: bool) -> DeviceState:
        """Return what the executor shows; of a device that is lost, that it is.

        A model that is asked nothing does not find out that its executor has ended.
        """
        if shown is None or not up:
            return cls(device=device, up=up)
        if time.monotonic_ns() - shown.beat_ns > STALE_NS:
            return cls(device=device, up=up, pool=PoolSample(size_bytes=shown.pool.size_bytes))
        return cls(
            device=device,
            up=up,
            outstanding_ns=shown.ns,
            pool=shown.pool,
            health=shown.health,
            memory_bytes=shown.memory_bytes,
        )

    def record(self, recorder: Recorder) -> None:
        """Set the gauges of the device; may be called from any thread."""
        pool, health = self.pool, self.health
        values: dict[str, float] = {
            "ge_device_up": self.up,
            "ge_device_outstanding_seconds": self.outstanding_ns / 1e9,
            "ge_executor_memory_bytes": self.memory_bytes,
            "ge_evicted_graphs": pool.evictions,
        }
        if pool.size_bytes:
            values |= {
                "ge_workspace_pool_bytes": pool.size_bytes,
                "ge_workspace_placed_bytes": pool.placed_bytes,
                "ge_workspace_used_bytes": pool.leased_bytes,
                "ge_workspace_peak_bytes": pool.peak_bytes,
            }
        if health.abnormal >= 0:
            values["ge_device_abnormal"] = health.abnormal
        for name, value in values.items():
            recorder.set(name, float(value), device=self.device)
        for unit in ("cube", "vector", "aicpu"):
            if (percent := getattr(health, unit)) >= 0:
                busy = percent / 100
                recorder.set("ge_device_utilization_ratio", busy, device=self.device, unit=unit)
