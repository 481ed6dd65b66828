"""The simulator, and a fake `atc` that makes its models, for what is asked of an NPU."""

import sys
import types

from tools.probes import npu_models

from acl_simulator import ChannelMeans, MatMul, Simulator
from builders.cann import fake_cann
from builders.simulated_onnx import onnx_of


def simulated(monkeypatch, folder):
    """Return the simulator that `import acl` finds from now on."""
    cann = fake_cann(folder / "cann")
    monkeypatch.setenv("PATH", str(cann / "bin"), prepend=":")
    monkeypatch.setenv("HOME", str(folder))
    product = MatMul(rows=npu_models.WIDTH, columns=npu_models.WIDTH)
    made = {
        "matrix_product": onnx_of(product, ("batch", npu_models.WIDTH)),
        "token_product": onnx_of(product, ("batch", "tokens", npu_models.WIDTH)),
        "photo_means": onnx_of(ChannelMeans(), ("batch", *npu_models.IMAGE)),
    }
    for name, model in made.items():
        monkeypatch.setattr(npu_models, name, lambda model=model: model)
    sim = Simulator()
    module = types.ModuleType("acl")
    vars(module).update(sim.module())
    monkeypatch.setitem(sys.modules, "acl", module)
    return sim
