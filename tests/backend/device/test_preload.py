"""What a spare executor imports ahead of time."""

import sys
import types
from pathlib import Path

import pytest

from ge_backend.device.preload import imports_for, language_imports, preload

PROGRAM = "ge_backend.engines.torch.program:load_a_program"


@pytest.mark.parametrize(
    ("device", "file", "engine", "expected"),
    [
        ("cpu", "model.onnx", "", ("onnxruntime", "ge_backend.engines.ort.graph")),
        ("cpu", "model.onnx", "openvino", ("openvino", "ge_backend.engines.ov.graph")),
        ("cpu", "model.pt", "", ("torch", "ge_backend.engines.torch.cpu_graph")),
        ("cpu", "model.pt2", "", ("torch", "ge_backend.engines.torch.cpu_graph", PROGRAM)),
        ("cuda:1", "model.pt", "", ("torch", "ge_backend.engines.torch.accelerator")),
        ("npu:0", "model.om", "", ("acl",)),
        ("null", "model.null", "", ()),
    ],
)
def test_a_models_engine_is_preloaded(device, file, engine, expected):
    """And what its kind of device is opened with; torch_npu is left to that."""
    assert imports_for(device, Path(file), engine=engine, precision="origin") == expected


def test_modules_are_imported_and_functions_called(monkeypatch, caplog):
    """What is not there is told to whoever loads a model, and hinders nothing here."""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    called = []
    act = types.SimpleNamespace(begin=lambda: called.append("begin"))
    monkeypatch.setitem(sys.modules, "first_act", act)
    with caplog.at_level("INFO"):
        preload(["no_such_module", "first_act:begin", "colorsys"])
    assert called == ["begin"]
    assert "colorsys" in sys.modules
    assert "no_such_module cannot be preloaded" in caplog.text


@pytest.mark.parametrize(
    ("device", "engine", "expected"),
    [
        ("cpu", "", ["openvino", "torch"]),
        ("cpu", "torch", ["torch"]),
        ("cpu", "openvino", ["openvino"]),
        ("cuda:1", "", ["torch"]),
    ],
)
def test_a_language_model_waits_for_the_engines_that_may_compute_it(device, engine, expected):
    """And for no other: an import takes memory, too. Each has its opener beside it."""
    imports = language_imports(device, engine)
    assert list(imports[::2]) == expected
    for opener in imports[1::2]:
        assert opener.startswith("ge_text.")
        assert opener.endswith(".open")
