"""What an executor shows of its device becomes gauges; nothing that it does not say."""

import time
from types import SimpleNamespace

import pytest

from ge_backend.device.health import Health
from ge_backend.executor.protocol.outstanding import PoolSample
from ge_backend.metrics import Recorder
from ge_backend.serving.fleet.device_state import DeviceState

POOL = PoolSample(size_bytes=12, placed_bytes=8, leased_bytes=3, peak_bytes=5, evictions=1)
SHOWN = SimpleNamespace(
    ns=7 * 10**9,
    pool=POOL,
    health=Health(abnormal=0, cube=50, aicpu=25),
    memory_bytes=5 << 20,
    beat_ns=time.monotonic_ns() + 3600 * 10**9,
)


def recorded(state):
    """Return the gauges that were set, by name and unit."""
    recorder = Recorder()
    state.record(recorder)
    gauges = recorder.drain()
    assert all(dict(labels)["device"] == "npu:1" for _, labels in gauges)
    return {(name, dict(labels).get("unit", "")): value for (name, labels), value in gauges.items()}


def test_all_that_is_shown_is_recorded():
    """The device's work, its pool, its health, and its executor's memory."""
    assert recorded(DeviceState.of("npu:1", SHOWN, up=True)) == {
        ("ge_device_up", ""): 1,
        ("ge_device_outstanding_seconds", ""): 7,
        ("ge_executor_memory_bytes", ""): 5 << 20,
        ("ge_evicted_graphs", ""): 1,
        ("ge_workspace_pool_bytes", ""): 12,
        ("ge_workspace_placed_bytes", ""): 8,
        ("ge_workspace_used_bytes", ""): 3,
        ("ge_workspace_peak_bytes", ""): 5,
        ("ge_device_abnormal", ""): 0,
        ("ge_device_utilization_ratio", "cube"): 0.5,
        ("ge_device_utilization_ratio", "aicpu"): 0.25,
    }


@pytest.mark.parametrize("shown", [None, SHOWN])
def test_of_a_lost_device_nothing_is_told_but_that(shown):
    """What a dead executor showed last is of no use; 0 says so."""
    assert recorded(DeviceState.of("npu:1", shown, up=False)) == {
        ("ge_device_up", ""): 0,
        ("ge_device_outstanding_seconds", ""): 0,
        ("ge_executor_memory_bytes", ""): 0,
        ("ge_evicted_graphs", ""): 0,
    }


def test_an_executor_that_beats_no_more_has_nothing_to_do():
    """Where a model is asked nothing, nobody finds out that it has ended; its pool has a size still."""
    silent = SimpleNamespace(**{**vars(SHOWN), "beat_ns": time.monotonic_ns() - 10**10})
    told = recorded(DeviceState.of("npu:1", silent, up=True))
    assert {name for (name, _), value in told.items() if value} == {
        "ge_device_up",
        "ge_workspace_pool_bytes",
    }
