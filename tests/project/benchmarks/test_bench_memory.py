"""The benchmark of memory: the models that it writes."""

import json
import runpy
import sys
from types import SimpleNamespace

from benchmarks.bench_memory import SYSTEMS, _write_model
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig


def test_the_rival_finds_all_that_it_reads_of_its_configuration(tmp_path, monkeypatch):
    """It is shared with other benchmarks, whose models say more."""
    file = tmp_path / "model.onnx"
    file.touch()
    rival = next(system for system in SYSTEMS if system.backend == "python")
    _write_model(tmp_path / "m", rival, 2, file)
    config = text_format.Parse((tmp_path / "m" / "config.pbtxt").read_text(), ModelConfig())
    said = {k: {"string_value": v.string_value} for k, v in config.parameters.items()}
    asked = []

    def load_forward(*told):
        asked.append(told)
        return lambda ids, mask: ids

    forward = SimpleNamespace(ENGINES={"onnx": "model.onnx"}, load_forward=load_forward)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "forward", forward)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", SimpleNamespace())
    model = runpy.run_path(str(tmp_path / "m" / "1" / "model.py"))["TritonPythonModel"]()
    model.initialize({"model_config": json.dumps({"parameters": said})})
    assert asked == [("onnx", tmp_path / "m" / "1" / "model.onnx", 1, "cpu")]
