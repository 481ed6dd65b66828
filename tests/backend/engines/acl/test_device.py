"""An opened device lends streams and remembers when it failed; faults of all calls: test_npu.py."""

import threading

import pytest

from ge_backend.engines.acl.device import AclDevice
from ge_backend.errors import DeviceFault, GraphFailed

PATIENCE_MS = 1000


@pytest.fixture
def device(sim):
    device = AclDevice(sim, 0, streams=2)
    yield device
    device.close()
    sim.check()


def test_streams_are_lent_and_come_back(device):
    """As many at once as were asked for; the next one waits until one is back."""
    with device.stream(PATIENCE_MS) as first, device.stream(PATIENCE_MS) as second:
        assert first != second
        got = []

        def third():
            with device.stream(PATIENCE_MS) as stream:
                got.append(stream)

        thread = threading.Thread(target=third)
        thread.start()
        thread.join(0.05)
        assert got == []
    thread.join()
    assert got[0] in {first, second}


def test_every_thread_gets_the_context(device):
    """A thread that has none of its own can allocate within."""
    outcome = []

    def work():
        with device.entered():
            address = device.runtime.allocate(64)
            device.runtime.free(address)
            outcome.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert outcome == ["done"]


def test_a_use_that_fails_waits_for_what_it_queued(sim, device):
    """Its memory may be freed afterwards."""
    with device.entered():
        target, source = device.runtime.allocate(64), device.runtime.allocate_host(64)

    def use():
        with device.stream(PATIENCE_MS) as stream:
            device.runtime.upload(target, source, 64, stream)
            assert sim.in_flight()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    assert sim.in_flight() == []
    with device.entered():
        device.runtime.free(target)
        device.runtime.free_host(source)


@pytest.mark.parametrize("code", [207020, 107022, 207001, 500003])
def test_what_cannot_be_waited_for_is_a_fault(sim, device, code):
    """Its stream would be lent with work in flight, and its memory be used again."""
    with device.entered():
        target, source = device.runtime.allocate(64), device.runtime.allocate_host(64)
    sim.fail("rt.synchronize_stream_with_timeout", code, times=2)

    def use():
        with device.stream(PATIENCE_MS) as stream:
            device.runtime.upload(target, source, 64, stream)
            device.runtime.synchronise(stream, PATIENCE_MS)

    with pytest.raises(DeviceFault, match=f"{code}"):
        use()
    assert sim.in_flight()
    with pytest.raises(DeviceFault, match="not used again"):
        device.entered().__enter__()
    device.settle()
    assert sim.in_flight() == []
    device.runtime.free(target)
    device.runtime.free_host(source)


def test_a_wait_that_is_refused_once_is_no_fault(sim, device):
    """The second one, after the use has failed, has seen all of it done."""
    sim.fail("rt.synchronize_stream_with_timeout", 107022)
    with pytest.raises(GraphFailed, match="107022"), device.stream(PATIENCE_MS) as stream:
        device.runtime.synchronise(stream, PATIENCE_MS)
    with device.entered():
        pass


def test_a_fault_is_remembered(sim, device):
    """Every later use is refused with the first reason; memory can still be asked for."""
    sim.fail("rt.memcpy_async", 507899, message="the driver is gone")
    with device.entered():
        target, source = device.runtime.allocate(64), device.runtime.allocate_host(64)
    with pytest.raises(DeviceFault, match="the driver is gone"), device.stream(0) as stream:
        device.runtime.upload(target, source, 64, stream)
    with pytest.raises(DeviceFault, match=r"not used again: .*the driver is gone"):
        device.entered().__enter__()
    assert device.memory().total_bytes > 0
    device.settle()
    device.runtime.free(target)
    device.runtime.free_host(source)


def test_who_waited_for_a_stream_when_the_device_failed_is_refused(sim, device):
    """He gets the stream, and does not use it."""
    sim.fail("rt.synchronize_stream_with_timeout", 507015)
    errors = []

    def wait():
        try:
            with device.stream(PATIENCE_MS):
                errors.append(None)
        except DeviceFault as error:
            errors.append(error)

    def fail():
        with device.stream(PATIENCE_MS), device.stream(PATIENCE_MS) as stream:
            thread = threading.Thread(target=wait)
            thread.start()
            try:
                device.runtime.synchronise(stream, PATIENCE_MS)
            finally:
                threads.append(thread)

    threads = []
    with pytest.raises(DeviceFault):
        fail()
    threads[0].join()
    assert "not used again" in str(errors[0])


def test_it_is_quiet_once_nothing_is_in_flight(sim, device):
    """Whoever needs that waits for the streams that are lent, and keeps them meanwhile."""
    order = []

    def use():
        with device.stream(PATIENCE_MS):
            order.append("lent again")

    def be_quiet():
        with device.quiet():
            order.append("quiet")
            threads[1].start()
            threads[1].join(0.05)
            order.append("still quiet")

    threads = [threading.Thread(target=be_quiet), threading.Thread(target=use)]
    with device.stream(PATIENCE_MS):
        threads[0].start()
        threads[0].join(0.05)
        order.append("lent")
    for thread in threads:
        thread.join()
    assert order == ["lent", "quiet", "still quiet", "lent again"]


def test_a_refusal_is_no_fault(sim, device):
    """The device stays in use."""
    sim.fail("rt.malloc", 100000)
    with pytest.raises(GraphFailed), device.entered():
        device.runtime.allocate(64)
    with device.entered():
        device.runtime.free(device.runtime.allocate(64))


def test_what_hangs_is_abandoned_when_it_is_settled(sim, device):
    """Its stream is destroyed by force, once, and memory may be freed then."""
    with device.entered():
        target, source = device.runtime.allocate(64), device.runtime.allocate_host(64)
    sim.fail("rt.synchronize_stream_with_timeout", 507046)

    def use():
        with device.stream(PATIENCE_MS) as stream:
            device.runtime.upload(target, source, 64, stream)
            device.runtime.synchronise(stream, PATIENCE_MS)

    with sim.paused():
        with pytest.raises(DeviceFault):
            use()
        assert sim.in_flight()
        for _ in range(2):
            device.settle()
        assert sim.in_flight() == []
        assert sim.calls["rt.destroy_stream_force"] == 1
    device.runtime.free(target)
    device.runtime.free_host(source)
