"""A GPU as a device; what it runs is tested by the contract and with each engine."""

import sys

import pytest

torch = pytest.importorskip("torch")

from fakes.torch_vendor import FakeVendor  # noqa: E402
from ge_backend.device.base import GraphSource, open_device  # noqa: E402
from ge_backend.engines.kinds.cuda import CudaDevice  # noqa: E402
from ge_backend.engines.torch import cuda as torch_cuda  # noqa: E402
from ge_backend.errors import DeviceUnavailable, ModelError  # noqa: E402


@pytest.fixture
def device():
    return CudaDevice(FakeVendor(total_bytes=1 << 20))


def test_without_torch_it_says_what_to_install(monkeypatch):
    """Torch is what talks to the GPU."""
    monkeypatch.delitem(sys.modules, "ge_backend.engines.torch.cuda", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DeviceUnavailable, match=r"'cuda:1' needs torch .* a build of it with CUDA"):
        open_device("cuda:1")


def test_a_gpu_that_another_process_has_for_itself(monkeypatch):
    """What CUDA says when it begins is the reason, in one line."""

    class Busy(FakeVendor):
        def new_stream(self):
            raise RuntimeError("CUDA error: all CUDA-capable devices are busy\nCompile with ...")

    monkeypatch.setattr(torch_cuda, "open_cuda", lambda index: Busy())
    with pytest.raises(DeviceUnavailable, match=r"'cuda:0' cannot be used: .* are busy$"):
        open_device("cuda:0")


def test_memory_is_the_vendors(device):
    """Free and total bytes are what the driver says."""
    memory = device.memory()
    assert (memory.free_bytes, memory.total_bytes) == (1 << 20, 1 << 20)


def test_there_is_no_pool_to_plan(device):
    """Runs take turns in one stream, so nobody need be kept from another's scratch."""
    assert device.reserve(1 << 20) == 0


def test_two_runs_are_in_flight(device):
    """One computes while another is on its way."""
    assert device.lanes == 2


def test_another_suffix_is_refused(device, tmp_path):
    """The error lists what runs here."""
    with pytest.raises(ModelError, match=r"runs \.onnx, \.pt2, \.pt"):
        device.load(GraphSource(path=str(tmp_path / "model.om"), stamp=""))


def test_close_waits_for_what_is_queued(device):
    """Nothing of ours runs on the device afterwards."""
    stream = device.streams.uploads
    stream.queue(lambda: None)
    device.close()
    assert not stream.work


def test_all_its_models_share_their_streams(device):
    """Text generators, too: two that capture side by side would break each other's."""
    assert device.torch_streams() is device.streams
