"""Device and host memory: sizes, poison, and what is refused."""

import numpy as np
import pytest

from acl_simulator import Misuse, Simulator
from acl_simulator.machine.address_space import POISON
from builders.acl_rig import D2H, H2D, host_view, ok

HUGE_FIRST, HUGE_ONLY, NORMAL_ONLY = 0, 1, 2
HBM = 1
MIB = 1 << 20


def used(sim):
    free, total = ok(sim.rt.get_mem_info(HBM))
    return total - free


@pytest.mark.parametrize(
    ("size", "policy", "cost"),
    [
        (1, HUGE_FIRST, 64),
        (32, HUGE_FIRST, 64),
        (33, HUGE_FIRST, 128),
        (MIB, HUGE_FIRST, MIB + 64),
        (MIB + 1, HUGE_FIRST, 2 * MIB),
        (1, HUGE_ONLY, 2 * MIB),
        (2 * MIB, HUGE_ONLY, 4 * MIB),
        (2 * MIB, NORMAL_ONLY, 2 * MIB + 64),
    ],
)
def test_an_allocation_costs_what_it_is_rounded_up_to(rig, sim, size, policy, cost):
    address = ok(sim.rt.malloc(size, policy))
    assert address % 64 == 0
    assert used(sim) == cost
    ok(sim.rt.free(address))
    assert used(sim) == 0


def test_the_950_takes_nothing_behind(tmp_path):
    sim = Simulator(soc="Ascend950")
    ok(sim.init())
    ok(sim.rt.set_device(0))
    ok(sim.rt.malloc(64, NORMAL_ONLY))
    assert used(sim) == 64


def test_memory_runs_out(rig, sim):
    assert sim.rt.malloc(17 * MIB, HUGE_FIRST) == (0, 207001)
    assert "bytes left" in sim.get_recent_err_msg()
    assert sim.get_recent_err_msg() is None


def test_devices_have_memory_of_their_own(rig, sim):
    ok(sim.rt.malloc(8 * MIB, HUGE_FIRST))
    ok(sim.rt.set_device(1))
    assert used(sim) == 0


@pytest.mark.parametrize("call", ["malloc", "malloc_align32", "malloc_cached"])
def test_nothing_cannot_be_allocated(rig, sim, call):
    assert getattr(sim.rt, call)(0, HUGE_FIRST) == (0, 100000)
    assert sim.rt.malloc_host(0) == (0, 100000)


def test_an_unknown_policy_is_refused(rig, sim):
    assert sim.rt.malloc(1, 9) == (0, 107018)


@pytest.mark.parametrize("call", ["free", "free_host"])
def test_null_cannot_be_freed(rig, sim, call):
    assert getattr(sim.rt, call)(0) == 100000


def test_fresh_memory_is_poison(rig, sim):
    address = rig.device(8)
    _, view = rig.pinned(8)
    assert set(rig.download(address, np.uint8, 8)) == set(view) == {POISON}


def test_a_double_free_is_misuse(rig, sim):
    address = rig.device(8)
    ok(sim.rt.free(address))
    with pytest.raises(Misuse, match="double free"):
        sim.rt.free(address)


def test_pinned_memory_is_freed_once_too(rig, sim):
    address, _ = rig.pinned(8)
    ok(sim.rt.free_host(address))
    with pytest.raises(Misuse, match="double free"):
        sim.rt.free_host(address)


@pytest.mark.parametrize("offset", [64, 1 << 30])
def test_only_what_malloc_gave_is_freed(rig, sim, offset):
    with pytest.raises(Misuse, match="no allocation ever began"):
        sim.rt.free(rig.device(256) + offset)


def test_host_memory_is_not_freed_as_the_devices(rig, sim):
    with pytest.raises(Misuse, match="not a device's address"):
        sim.rt.free(rig.pinned(8)[0])


def test_freed_memory_is_not_used(rig, sim):
    address = rig.device(8)
    ok(sim.rt.free(address))
    with pytest.raises(Misuse, match="use of freed memory"):
        rig.download(address, np.uint8, 8)


def test_nobody_reads_past_the_end(rig, sim):
    host, _ = rig.pinned(64)
    with pytest.raises(Misuse, match="1 bytes after"):
        sim.rt.memcpy(host, 64, rig.device(32), 33, D2H)


def test_nobody_writes_past_the_end_of_pinned_memory(rig, sim):
    address, _ = rig.pinned(8)
    host_view(address, 9)[7] = 1
    sim.check()
    host_view(address, 9)[8] = 1
    with pytest.raises(Misuse, match="written behind the end"):
        sim.check()


def test_whoever_wrote_past_the_end_is_found_when_it_is_freed(rig, sim):
    address, _ = rig.pinned(8)
    host_view(address, 9)[8] = 1
    ok(sim.rt.free_host(address))
    with pytest.raises(Misuse, match="written behind the end"):
        sim.check()


def test_nobody_writes_pinned_memory_after_it_was_freed(rig, sim):
    address, view = rig.pinned(8)
    view[:] = 5
    ok(sim.rt.free_host(address))
    assert set(view) == {POISON}
    sim.check()
    view[0] = 1
    with pytest.raises(Misuse, match="written after free_host"):
        sim.check()


def test_addresses_are_never_given_twice(rig, sim):
    address = rig.device(64)
    ok(sim.rt.free(address))
    assert rig.device(64) != address


def test_ddr_is_not_there(rig, sim):
    assert sim.rt.get_mem_info(0) == (0, 0, 0)
    assert sim.rt.get_mem_info(77) == (0, 0, 107000)


def test_memory_in_flight_is_not_freed(rig, sim):
    host, _ = rig.pinned(64)
    address = rig.device(64)
    ok(sim.rt.memcpy_async(address, 64, host, 64, H2D, rig.stream))
    for free, it in ((sim.rt.free, address), (sim.rt.free_host, host)):
        with pytest.raises(Misuse, match="still in flight"):
            free(it)
    ok(sim.rt.synchronize_stream(rig.stream))
    ok(sim.rt.free(address))
    ok(sim.rt.free_host(host))
