"""A simulator that is set up, and a rig to use it."""

import pytest

from acl_simulator import Simulator
from builders.acl_rig import Rig, ok


@pytest.fixture
def sim():
    simulator = Simulator(devices=2, hbm_bytes=16 << 20)
    ok(simulator.init())
    return simulator


@pytest.fixture
def rig(sim, tmp_path):
    return Rig(sim, tmp_path)
