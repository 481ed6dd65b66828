"""Devices and contexts: per thread, and counted."""

import threading

import pytest

from acl_simulator import Misuse, Simulator, TorchNpu
from builders.acl_rig import H2D, ok


def in_thread(act):
    results = []
    thread = threading.Thread(target=lambda: results.append(act()))
    thread.start()
    thread.join()
    return results[0]


def test_nothing_works_before_init():
    sim = Simulator()
    assert sim.rt.set_device(0) == 100001
    assert sim.rt.malloc(8, 0) == (0, 100001)
    assert sim.mdl.load_from_file("x.om") == (0, 100001)
    assert sim.finalize() == 100001


def test_init_and_finalize_take_turns(sim):
    assert sim.init() == 100002
    ok(sim.finalize())
    assert sim.finalize() == 100037
    ok(sim.init())
    ok(sim.rt.set_device(0))


def test_waiting_alone_switches_to_the_streams_context(rig, sim):
    host, _ = rig.pinned(64)
    memory = rig.device(64)
    ok(sim.rt.memcpy_async(memory, 64, host, 64, H2D, rig.stream))
    other = ok(sim.rt.create_context(0))
    assert sim.rt.memcpy_async(memory, 64, host, 64, H2D, rig.stream) == 107003
    ok(sim.rt.synchronize_stream(rig.stream))
    assert ok(sim.rt.get_context()) == other


def test_torch_npu_trusts_that_its_context_is_current(sim):
    torch = TorchNpu(sim)
    torch.run()
    ok(sim.rt.create_context(0))
    with pytest.raises(RuntimeError, match="memcpy_async, error code is 107003"):
        torch.run()


def test_torch_npu_cannot_leave_after_a_finalize(sim):
    torch = TorchNpu(sim)
    torch.run()
    with pytest.raises(Misuse, match="device 0 is set 1 times"):
        sim.finalize()
    with pytest.raises(RuntimeError, match="error code is 100001"):
        torch.leave()


def test_torch_npu_leaves_nothing_of_its_own(sim):
    torch = TorchNpu(sim)
    torch.run()
    torch.leave()
    assert sim.allocations() == []
    sim.check()


def test_somebody_else_owns_acl():
    sim = Simulator(owned_elsewhere=True)
    assert sim.init() == 100002
    ok(sim.rt.set_device(0))
    with pytest.raises(Misuse, match="another library"):
        sim.finalize()


def test_a_thread_without_context_can_do_nothing(rig, sim):
    assert in_thread(lambda: sim.rt.malloc(8, 0)) == (0, 107002)
    assert in_thread(sim.rt.create_stream) == (0, 107002)
    assert in_thread(lambda: sim.rt.synchronize_stream(rig.stream)) == 107002
    assert in_thread(sim.rt.get_device) == (0, 107002)


def test_a_thread_may_take_a_context(rig, sim):
    context = ok(sim.rt.get_context())

    def act():
        ok(sim.rt.set_context(context))
        return sim.rt.get_device()

    assert in_thread(act) == (0, 0)


def test_all_threads_share_a_devices_default_context(rig, sim):
    def act():
        ok(sim.rt.set_device(0))
        return ok(sim.rt.get_context())

    assert in_thread(act) == ok(sim.rt.get_context())


@pytest.mark.parametrize("index", [-1, 2])
def test_there_are_only_so_many_devices(sim, index):
    assert sim.rt.set_device(index) == 107001
    assert sim.rt.create_context(index) == (0, 107001)
    assert ok(sim.rt.get_device_count()) == 2


def test_set_and_reset_are_counted(sim):
    ok(sim.rt.set_device(0))
    ok(sim.rt.set_device(0))
    ok(sim.rt.reset_device(0))
    ok(sim.rt.get_context())
    ok(sim.rt.reset_device(0))
    assert sim.rt.get_context() == (0, 107002)
    assert sim.rt.reset_device(0) == 107001


def test_what_is_left_at_the_last_reset_has_leaked(rig, sim):
    rig.device(64)
    with pytest.raises(Misuse, match=r"memory 64 bytes.*stream 0x"):
        sim.rt.reset_device(0)


def test_work_in_flight_at_reset_is_misuse(rig, sim):
    host, _ = rig.pinned(64)
    ok(sim.rt.memcpy_async(rig.device(64), 64, host, 64, H2D, rig.stream))
    with pytest.raises(Misuse, match="memcpy_async in flight"):
        sim.rt.reset_device(0)


def test_a_forced_reset_asks_nothing(rig, sim):
    address = rig.device(64)
    ok(sim.rt.reset_device_force(0))
    sim.check()
    assert sim.rt.malloc(8, 0) == (0, 107002)
    ok(sim.rt.set_device(0))
    with pytest.raises(Misuse, match="double free"):
        sim.rt.free(address)


def test_finalize_finds_what_leaked(rig, sim):
    rig.pinned(32)
    ok(sim.rt.destroy_stream(rig.stream))
    sim.mdl.create_dataset()
    ok(sim.rt.reset_device(0))
    with pytest.raises(Misuse, match=r"memory 32 bytes.*host.*dataset 0x"):
        sim.finalize()
    assert len(sim.misuses) == 1


def test_finalize_finds_late_writes(rig, sim):
    address, view = rig.pinned(32)
    ok(sim.rt.free_host(address))
    view[:] = 1
    ok(sim.rt.destroy_stream(rig.stream))
    ok(sim.rt.reset_device(0))
    ok(sim.finalize())
    assert "written after free_host" in str(sim.misuses[0])


def test_a_clean_end_is_clean(rig, sim):
    ok(sim.rt.destroy_stream(rig.stream))
    ok(sim.rt.reset_device(0))
    ok(sim.finalize())
    sim.check()


def test_streams_stay_in_their_context(rig, sim):
    ok(sim.rt.create_context(0))
    event = ok(sim.rt.create_event())
    assert sim.rt.record_event(event, rig.stream) == 107003


def test_a_context_goes_after_its_streams(rig, sim):
    context = ok(sim.rt.create_context(0))
    stream = ok(sim.rt.create_stream())
    with pytest.raises(Misuse, match="1 streams"):
        sim.rt.destroy_context(context)
    ok(sim.rt.destroy_stream(stream))
    ok(sim.rt.destroy_context(context))
    assert sim.rt.get_context() == (0, 107002)


def test_the_default_context_is_not_destroyed(rig, sim):
    with pytest.raises(Misuse, match="default context"):
        sim.rt.destroy_context(ok(sim.rt.get_context()))


def test_what_a_device_tells(rig, sim):
    assert ok(sim.rt.get_run_mode()) == 1
    assert ok(sim.rt.device_can_access_peer(0, 1)) == 1
    assert set(ok(sim.rt.get_device_utilization_rate(0))) == {
        "cube_utilization",
        "vector_utilization",
        "aicpu_utilization",
        "memory_utilization",
        "utilization_extend",
    }
    assert sim.get_soc_name() == "Ascend910B3"
    assert sim.get_version()[3] == 0
    assert sim.data_type_size(1) == 2


def test_messages_belong_to_their_thread(rig, sim):
    assert sim.rt.malloc(0, 0) == (0, 100000)
    assert in_thread(sim.get_recent_err_msg) is None
    assert "malloc of 0 bytes" in sim.get_recent_err_msg()
