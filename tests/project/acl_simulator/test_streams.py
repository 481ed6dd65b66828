"""Streams run later, in order, and only as far as somebody waits."""

import threading

import numpy as np
import pytest

from acl_simulator import Affine, Misuse, Simulator, Static
from builders.acl_rig import D2H, H2D, Rig, ok

READY, NOT_READY = 0, 1
SYNCHRONISE = "rt.synchronize_stream_with_timeout"
X = np.arange(8, dtype=np.float32)


@pytest.fixture
def round_trip(rig, sim):
    """Host to device to host: what it needs, and a function that puts it on the stream."""
    source, source_view = rig.pinned(64)
    target, target_view = rig.pinned(64)
    middle = rig.device(64)

    def submit():
        ok(sim.rt.memcpy_async(middle, 64, source, 64, H2D, rig.stream))
        ok(sim.rt.memcpy_async(target, 64, middle, 64, D2H, rig.stream))

    return source_view, target_view, submit


def slow_run(rig, duration_ms):
    """Put a run of so long on the stream."""
    model = rig.load(Affine(), Static({"x": (8,)}), duration_ms=duration_ms)
    datasets = rig.datasets(model)
    rig.fill(datasets[0], X)
    ok(rig.sim.mdl.execute_async(model, *datasets, rig.stream))
    return lambda: rig.results(model, datasets[1])[0]


def test_nothing_runs_before_somebody_waits(rig, sim, round_trip):
    source, target, submit = round_trip
    source[:] = 1
    submit()
    assert not np.any(target == 1)
    assert sim.in_flight() == ["memcpy_async", "memcpy_async"]
    ok(sim.rt.synchronize_stream(rig.stream))
    assert np.all(target == 1)
    assert sim.in_flight() == []


def test_a_source_overwritten_too_early_gives_wrong_data(rig, sim, round_trip):
    source, target, submit = round_trip
    source[:] = 1
    submit()
    source[:] = 2
    ok(sim.rt.synchronize_stream(rig.stream))
    assert np.all(target == 2)


def test_a_wait_ends_by_virtual_time(rig, sim):
    result = slow_run(rig, 30.0)
    assert sim.rt.synchronize_stream_with_timeout(rig.stream, 10) == 507046
    assert sim.in_flight()
    assert sim.rt.synchronize_stream_with_timeout(rig.stream, 10) == 507046
    ok(sim.rt.synchronize_stream_with_timeout(rig.stream, 10))
    assert np.array_equal(result(), 2 * X + 1)


def test_a_wait_counts_all_the_work_before_it(rig, sim):
    slow_run(rig, 6.0)
    slow_run(rig, 6.0)
    assert sim.rt.synchronize_stream_with_timeout(rig.stream, 10) == 507046
    ok(sim.rt.synchronize_stream_with_timeout(rig.stream, 2))


def test_a_negative_timeout_is_none(rig, sim):
    slow_run(rig, 30.0)
    assert sim.rt.synchronize_stream_with_timeout(rig.stream, -2) == 107000
    ok(sim.rt.synchronize_stream_with_timeout(rig.stream, -1))


def test_a_hang_ends_only_by_timeout(rig, sim):
    sim.hang()
    slow_run(rig, 1.0)
    assert sim.rt.synchronize_stream_with_timeout(rig.stream, 10**6) == 507046
    with pytest.raises(Misuse, match="for ever"):
        sim.rt.synchronize_stream(rig.stream)
    ok(sim.rt.destroy_stream_force(rig.stream))
    assert sim.in_flight() == []


def test_polling_gets_there_but_not_at_once(rig, sim, round_trip):
    source, target, submit = round_trip
    source[:] = 1
    submit()
    answers = [ok(sim.rt.stream_query(rig.stream)) for _ in range(3)]
    assert answers == [NOT_READY, NOT_READY, READY]
    assert np.all(target == 1)
    assert sim.in_flight() == []


def test_a_stream_may_run_by_itself_but_counts_as_in_flight(tmp_path):
    sim = Simulator(delay_s=0.0)
    ok(sim.init())
    rig = Rig(sim, tmp_path)
    source, view = rig.pinned(64)
    view[:] = 1
    ok(sim.rt.memcpy_async(rig.device(64), 64, source, 64, H2D, rig.stream))
    assert sim.wait_until(lambda: sim.uploaded_bytes == 64)
    with pytest.raises(Misuse, match="still in flight"):
        sim.rt.free_host(source)


def test_time_can_be_real(tmp_path):
    sim = Simulator(time_scale=1e-6)
    ok(sim.init())
    rig = Rig(sim, tmp_path)
    result = slow_run(rig, 1000.0)
    ok(sim.rt.synchronize_stream(rig.stream))
    assert np.array_equal(result(), 2 * X + 1)


def test_whoever_waits_while_all_is_paused_waits(rig, sim):
    result = slow_run(rig, 1.0)
    context = ok(sim.rt.get_context())
    rets = []

    def wait():
        ok(sim.rt.set_context(context))
        rets.append(sim.rt.synchronize_stream_with_timeout(rig.stream, 10))

    waiter = threading.Thread(target=wait)
    with sim.paused():
        waiter.start()
        assert sim.wait_until(lambda: sim.calls[SYNCHRONISE] == 1)
        assert rets == []
    waiter.join()
    assert rets == [0]
    assert np.array_equal(result(), 2 * X + 1)


def test_a_stream_with_work_is_not_destroyed(rig, sim):
    slow_run(rig, 1.0)
    with pytest.raises(Misuse, match="is in flight on it"):
        sim.rt.destroy_stream(rig.stream)


def test_a_stream_is_destroyed_once(rig, sim):
    ok(sim.rt.destroy_stream(rig.stream))
    with pytest.raises(Misuse, match="after it was destroyed"):
        sim.rt.synchronize_stream(rig.stream)


def test_the_device_waits_for_all_its_streams(rig, sim, round_trip):
    source, target, submit = round_trip
    source[:] = 1
    submit()
    ok(sim.rt.synchronize_device())
    assert np.all(target == 1)


def test_stream_0_is_the_default_one(rig, sim):
    source, view = rig.pinned(64)
    view[:] = 3
    address = rig.device(64)
    ok(sim.rt.memcpy_async(address, 64, source, 64, H2D, 0))
    ok(sim.rt.synchronize_stream(0))
    assert np.all(rig.download(address, np.uint8, 64) == 3)


def test_streams_run_out(tmp_path):
    sim = Simulator(soc="Ascend310B1")
    ok(sim.init())
    ok(sim.rt.set_device(0))
    assert ok(sim.rt.get_stream_available_num()) == 512
    for _ in range(512):
        ok(sim.rt.create_stream_with_config(0, 0))
    assert sim.rt.create_stream() == (0, 207005)


def test_cores_are_limited_per_stream(rig, sim):
    assert ok(sim.rt.get_stream_res_limit(rig.stream, 0)) == 20
    ok(sim.rt.set_stream_res_limit(rig.stream, 0, 12))
    assert ok(sim.rt.get_stream_res_limit(rig.stream, 0)) == 12
    assert ok(sim.rt.get_stream_res_limit(rig.stream, 1)) == 40
    assert sim.rt.set_stream_res_limit(rig.stream, 0, 21) == 107000
    ok(sim.rt.use_stream_res_in_current_thread(rig.stream))
    ok(sim.rt.reset_stream_res_limit(rig.stream))
    assert ok(sim.rt.get_stream_res_limit(rig.stream, 0)) == 20
    ok(sim.rt.set_device_res_limit(0, 0, 8))
    assert ok(sim.rt.get_stream_res_limit(rig.stream, 0)) == 8


def test_a_failed_run_is_told_once_by_whoever_waits(rig, sim):
    sim.fail("kernel.model", 507015)
    slow_run(rig, 1.0)
    assert sim.rt.synchronize_stream(rig.stream) == 507015
    assert "asked for" in sim.get_recent_err_msg()
    ok(sim.rt.synchronize_stream(rig.stream))
