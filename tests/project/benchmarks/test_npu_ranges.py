"""Runs with ranges by ACL's own calls, on the simulator."""

import pytest
from tools.probes.npu_ranges import nowhere, range_run

from acl_simulator import Misuse, Ranges, Simulator, Sums, write_om

SHAPE = (3, 4)


@pytest.fixture
def sim():
    sim = Simulator()
    sim.init()
    sim.rt.set_device(0)
    return sim


@pytest.fixture
def path(tmp_path):
    return write_om(tmp_path / "range.om", Sums(), Ranges({"x": ((1, 9), 4)}))


def test_a_run_says_its_code_and_the_last_errors(sim, path):
    """An earlier error's is forgotten; nothing is left at the end."""
    address, _ = sim.rt.malloc(64, 0)
    with range_run(sim, path, SHAPE, address) as run:
        sim.rt.set_device(9)
        assert run() == "execute 0 (no text); last error 0"
        sim.fail("kernel.*", 507015)
        assert run().endswith("; last error 507015")
    sim.rt.free(address)
    assert sim.allocations() == []
    assert list(sim.priorities) == []
    sim.check()


def test_nowhere_is_no_memory_any_more(sim, path):
    """The simulator refuses a run that reads it, where a real one has its AI core break."""
    address = nowhere(sim, 4096)
    with range_run(sim, path, SHAPE, address) as run, pytest.raises(Misuse):
        run()
