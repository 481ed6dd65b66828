"""Which devices say how they are."""

from acl_simulator import Simulator
from fakes.null_device import NullDevice
from ge_backend.device.health import Health, Monitored
from ge_backend.engines.kinds.npu import NpuDevice


def test_an_npu_says_it_and_others_do_not():
    """Nothing is known until somebody says it."""
    npu = NpuDevice(Simulator())
    assert isinstance(npu, Monitored)
    npu.close()
    assert not isinstance(NullDevice(), Monitored)
    assert Health() == Health(abnormal=-1, cube=-1, vector=-1, aicpu=-1)
