"""Events order streams, and tell the time between."""

import numpy as np
import pytest

from acl_simulator import Affine, Misuse, Static
from builders.acl_rig import D2H, H2D, ok


@pytest.fixture
def other(rig, sim):
    return ok(sim.rt.create_stream())


def upload(rig, stream, value=1):
    source, view = rig.pinned(64)
    view[:] = value
    address = rig.device(64)
    ok(rig.sim.rt.memcpy_async(address, 64, source, 64, H2D, stream))
    return address


def test_a_stream_waits_for_another(rig, sim, other):
    address = upload(rig, rig.stream)
    target, view = rig.pinned(64)
    event = ok(sim.rt.create_event())
    ok(sim.rt.record_event(event, rig.stream))
    ok(sim.rt.stream_wait_event(other, event))
    ok(sim.rt.memcpy_async(target, 64, address, 64, D2H, other))
    ok(sim.rt.synchronize_stream(other))
    assert np.all(view == 1)
    assert sim.in_flight() == []  # what came before the event has been seen as well


def test_without_an_event_it_is_a_race(rig, sim, other):
    address = upload(rig, rig.stream)
    target, _ = rig.pinned(64)
    with pytest.raises(Misuse, match="still in flight on stream"):
        sim.rt.memcpy_async(target, 64, address, 64, D2H, other)


def test_what_comes_after_the_event_is_not_ordered(rig, sim, other):
    event = ok(sim.rt.create_event_with_flag(1))
    ok(sim.rt.record_event(event, rig.stream))
    address = upload(rig, rig.stream)
    ok(sim.rt.stream_wait_event(other, event))
    target, _ = rig.pinned(64)
    with pytest.raises(Misuse, match="still in flight"):
        sim.rt.memcpy_async(target, 64, address, 64, D2H, other)


def test_the_host_waits_for_an_event(rig, sim):
    address = upload(rig, rig.stream)
    event = ok(sim.rt.create_event())
    ok(sim.rt.record_event(event, rig.stream))
    upload(rig, rig.stream)
    ok(sim.rt.synchronize_event(event))
    assert sim.in_flight() == ["memcpy_async"]
    assert np.all(rig.download(address, np.uint8, 64) == 1)


def test_an_event_waits_no_longer_than_asked(rig, sim):
    sim.hang()
    model = rig.load(Affine(), Static({"x": (8,)}))
    ok(sim.mdl.execute_async(model, *rig.datasets(model), rig.stream))
    event = ok(sim.rt.create_event())
    ok(sim.rt.record_event(event, rig.stream))
    assert sim.rt.synchronize_event_with_timeout(event, 5) == 507046
    with pytest.raises(Misuse, match="for ever"):
        sim.rt.synchronize_event(event)


def test_a_stream_that_waits_for_a_hang_hangs(rig, sim, other):
    sim.hang()
    model = rig.load(Affine(), Static({"x": (8,)}))
    ok(sim.mdl.execute_async(model, *rig.datasets(model), rig.stream))
    event = ok(sim.rt.create_event())
    ok(sim.rt.record_event(event, rig.stream))
    ok(sim.rt.stream_wait_event(other, event))
    assert sim.rt.synchronize_stream_with_timeout(other, 5) == 507046


def test_a_stream_waits_for_the_event_as_it_was(rig, sim, other):
    event = ok(sim.rt.create_event())
    upload(rig, rig.stream)
    ok(sim.rt.record_event(event, rig.stream))
    ok(sim.rt.stream_wait_event(other, event))
    sim.hang()
    model = rig.load(Affine(), Static({"x": (8,)}))
    ok(sim.mdl.execute_async(model, *rig.datasets(model), rig.stream))
    ok(sim.rt.record_event(event, rig.stream))
    ok(sim.rt.synchronize_stream_with_timeout(other, 5))


def test_events_tell_the_time(rig, sim):
    model = rig.load(Affine(), Static({"x": (8,)}), duration_ms=2.5)
    inputs, outputs = rig.datasets(model)
    start, end = (ok(sim.rt.create_event()) for _ in range(2))
    ok(sim.rt.record_event(start, rig.stream))
    ok(sim.mdl.execute_async(model, inputs, outputs, rig.stream))
    ok(sim.rt.record_event(end, rig.stream))
    assert sim.rt.event_elapsed_time(start, end) == (0.0, 107000)
    ok(sim.rt.synchronize_stream(rig.stream))
    assert ok(sim.rt.event_elapsed_time(start, end)) == 2.5


def test_an_event_that_nobody_recorded_is_there_already(rig, sim, other):
    event = ok(sim.rt.create_event())
    ok(sim.rt.stream_wait_event(other, event))
    ok(sim.rt.synchronize_event(event))
    ok(sim.rt.synchronize_stream(other))
    ok(sim.rt.destroy_event(event))
    with pytest.raises(Misuse, match="destroyed"):
        sim.rt.destroy_event(event)
