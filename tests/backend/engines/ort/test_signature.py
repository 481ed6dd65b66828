"""The signature of an ONNX file for an engine that does not read one."""

import sys

import pytest

import ge_backend.engines.ort
from ge_backend.engines.ort.signature import read_onnx_signature
from ge_backend.errors import DeviceUnavailable


def test_it_is_that_of_the_session(tmp_path):
    """Inputs, outputs, and axes by name."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from builders.graphs import masked_mean

    path = tmp_path / "model.onnx"
    path.write_bytes(masked_mean())
    signature = read_onnx_signature(path)
    assert [spec.name for spec in signature.inputs] == ["ids", "attention_mask"]
    assert signature.inputs[0].axes == ("batch", "sequence")


def test_without_onnx_runtime(tmp_path, monkeypatch):
    """The message says which library, why, and what installs it."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "ge_backend.engines.ort.session", raising=False)
    monkeypatch.delattr(ge_backend.engines.ort, "session", raising=False)
    with pytest.raises(
        DeviceUnavailable, match=r"^model\.onnx: ONNX for an NPU needs onnxruntime too.*\[onnx\]"
    ):
        read_onnx_signature(tmp_path / "model.onnx")
