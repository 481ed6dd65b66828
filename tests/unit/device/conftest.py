"""Simulated NPUs: the calls, the checked calls of one device, and a device that loads models."""

import pytest

from acl_simulator import Simulator
from builders.npu import Npu
from ge_backend.device.acl.runtime import AclRuntime


@pytest.fixture
def sim():
    return Simulator()


@pytest.fixture
def runtime(sim):
    runtime = AclRuntime(sim)
    assert runtime.initialise()
    runtime.open_device(0)
    return runtime


@pytest.fixture
def npu(tmp_path):
    npu = Npu(tmp_path)
    yield npu
    npu.close()
