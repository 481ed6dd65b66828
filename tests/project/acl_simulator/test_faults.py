"""Faults come when they are asked for, and change nothing."""

import contextlib
import json

import pytest

from acl_simulator import Affine, Misuse, Static
from builders.acl_rig import ok


def test_a_call_fails_after_so_many_and_so_often(rig, sim):
    sim.fail("rt.malloc", 207001, after=1, times=2, message="no memory today")
    rets = [sim.rt.malloc(64, 0)[1] for _ in range(4)]
    assert rets == [0, 207001, 207001, 0]
    assert "no memory today" in sim.get_recent_err_msg()
    assert len(sim.allocations()) == 2
    assert sim.calls["rt.malloc"] == 4


def test_a_fault_may_stay_until_it_is_healed(rig, sim):
    sim.fail("rt.*", 507899, times=None)
    assert sim.rt.malloc(64, 0) == (0, 507899)
    assert sim.rt.synchronize_stream(rig.stream) == 507899
    sim.heal()
    ok(sim.rt.synchronize_stream(rig.stream))


def test_a_call_that_failed_has_done_nothing(rig, sim):
    address = rig.device(64)
    sim.fail("rt.free", 507000)
    assert sim.rt.free(address) == 507000
    ok(sim.rt.free(address))


@pytest.mark.parametrize("name", ["kernel.model", "kernel.*"])
def test_a_run_fails_on_the_device(rig, sim, name):
    model = rig.load(Affine(), Static({"x": (8,)}))
    datasets = rig.datasets(model)
    sim.fail(name, 507015)
    assert sim.mdl.execute(model, *datasets) == 507015
    ok(sim.mdl.execute(model, *datasets))
    assert len(sim.executions) == 1


def test_a_run_that_hangs_is_not_waited_for(rig, sim):
    model = rig.load(Affine(), Static({"x": (8,)}))
    sim.hang("kernel.model")
    with pytest.raises(Misuse, match="hangs, and execute has no timeout"):
        sim.mdl.execute(model, *rig.datasets(model))


def test_faults_may_come_by_file(rig, sim, tmp_path):
    inbox = tmp_path / "faults.json"
    sim.take_faults_from(inbox)
    address = rig.device(64)
    inbox.write_text(json.dumps([{"name": "rt.free", "code": 507000}]))
    assert sim.rt.free(address) == 507000
    assert not inbox.exists()
    ok(sim.rt.free(address))


def test_a_misuse_is_remembered_whoever_swallows_it(rig, sim):
    with contextlib.suppress(AssertionError):
        sim.rt.free(4096)
    with pytest.raises(Misuse, match="not a device's address"):
        sim.check()
