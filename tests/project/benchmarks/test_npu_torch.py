"""The torch engine's checks, on a device that is not there."""

import pytest

pytest.importorskip("torch")

from tools.probes import npu_torch
from tools.probes.device_checks import CHECKS
from tools.probes.npu_torch import NpuTorch, checked, passed

from fakes.torch_vendor import FakeVendor
from ge_backend.engines.torch.streams import Streams


def test_what_passes_is_counted_and_what_fails_is_told(tmp_path, monkeypatch):
    """One check that breaks does not stop the others."""

    def breaks(subject):
        raise RuntimeError("it differs\nby much")

    def works(subject):
        assert subject.device.memory().total_bytes > 0

    monkeypatch.setattr(npu_torch, "CHECKS", (breaks, works))
    found = passed(NpuTorch(Streams(FakeVendor())), tmp_path)
    assert found == "1 of 2 pass. breaks: RuntimeError: it differs"


def test_it_is_the_npu_that_is_asked(tmp_path, monkeypatch):
    """By its index."""
    opened = []
    monkeypatch.setattr(npu_torch, "open_npu", lambda index: opened.append(index) or FakeVendor())
    monkeypatch.setattr(npu_torch, "CHECKS", CHECKS[:1])
    assert checked(3, tmp_path) == "1 of 1 pass."
    assert opened == [3]
