"""What is served on an NPU, asked of the simulator: the logic, and that nothing is misused or left."""

import numpy as np
import pytest

pytest.importorskip("onnx")

from tools.probes import npu_served
from tools.probes.npu_probes import Bench
from tools.probes.npu_served import far, health, images, pool, served

from acl_simulator import BatchGears, PixelMeans, write_om
from builders.npu_questions import simulated


@pytest.fixture
def sim(monkeypatch, tmp_path):
    return simulated(monkeypatch, tmp_path)


def test_each_kind_is_served(bench):
    """With names and shapes as clients see them."""
    found = dict(part.split(" (", 1) for part in served(bench).split("; "))
    assert list(found) == [
        "one shape",
        "priority 1",
        "batch gears",
        "dims gears",
        "ranges",
        "ranges with names",
    ]
    for name, told in found.items():
        assert told.endswith(("off by 0.0e+00", "e-07", "e-08")), (name, told)
    assert found["dims gears"].startswith("x FP32 [batch, x.1, 64], y FP32 [batch, x.1, 64])")


def test_what_fails_does_not_keep_the_others_from_being_asked(sim, bench):
    """Its error is its answer."""
    sim.fail("mdl.get_dynamic_batch", 100000, message="no gears")
    found = served(bench)
    assert "batch gears **ModelError: " in found
    assert found.count("off by") == 5


def test_work_memory_is_shared(bench, monkeypatch):
    """Both lie at the pool's begin."""
    monkeypatch.setattr(npu_served, "TURNS", 3)
    assert pool(bench).endswith(" at most in 3 turns of two")


def test_photos_are_served(bench, monkeypatch):
    """The fake `atc` knows no dynamic AIPP: that model is written here."""
    original = Bench.compiled

    def compiled(self, name, *arguments, **given):
        if name != "dynamic":
            return original(self, name, *arguments, **given)
        shapes = BatchGears({"x": (-1, 16, 16, 3)}, [(1,), (4,)])
        return write_om(self.folder / "dynamic.om", PixelMeans(), shapes, aipp_max=4096)

    monkeypatch.setattr(Bench, "compiled", compiled)
    monkeypatch.setattr(npu_served, "_means", lambda x: x.mean(axis=(1, 2), dtype=np.float32))
    static, dynamic = images(bench).split("; ")
    for told in (static, dynamic):
        assert "v2 {'name': 'x', 'dimCount': 4, " in told
        assert "x UINT8 [batch, 16, 16, 3]" in told
        assert float(told.rpartition("off by ")[2]) < 1e-5
    assert "ascend_dynamic_aipp_data: dims" in dynamic


def test_health_is_told(bench):
    """With how long it takes."""
    assert health(bench).startswith("Health(abnormal=0, cube=")
    assert health(bench).endswith(" ms")


def test_another_shape_is_no_small_difference():
    """NumPy would stretch it."""
    with pytest.raises(ValueError, match=r"\[1\] came, and not \[2\]"):
        far(np.zeros(1), np.zeros(2))
