"""ONNX Runtime on a GPU: what is asked of it. That it computes is the contract's matter."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from builders.graphs import masked_mean
from fakes.torch_vendor import FakeVendor
from ge_backend.device.base import GraphSource
from ge_backend.device.ort import cuda as onnx_cuda
from ge_backend.device.ort import graph as onnx_graph
from ge_backend.device.ort.cuda import OnnxCudaGraph
from ge_backend.device.pytorch.streams import Streams
from ge_backend.errors import DeviceFault, DeviceUnavailable, GraphFailed

IDS = np.ones((2, 3), np.int64)
INPUTS = {"ids": IDS, "attention_mask": IDS}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(masked_mean())
    return GraphSource.of(path)


@pytest.fixture
def streams():
    return Streams(FakeVendor())


@pytest.fixture
def graph(source, streams, monkeypatch):
    """Return a graph that asks the CPU's provider for what it would ask CUDA's."""
    monkeypatch.setattr(onnx_cuda, "PROVIDER", "CPUExecutionProvider")
    monkeypatch.setattr(onnx_cuda, "OPTIONS", {})
    return OnnxCudaGraph(source, streams)


def test_without_the_provider_nothing_is_loaded(source, streams):
    """It never computes on the CPU instead."""
    with pytest.raises(DeviceUnavailable, match="CUDAExecutionProvider"):
        OnnxCudaGraph(source, streams)


def test_the_gpu_and_its_options(source, streams, monkeypatch):
    """The provider is told which GPU, and to keep the file's precision."""
    asked = []

    class Graph:
        def __init__(self, source, cores, *, provider):
            asked.append(provider)
            self.signature = None

    monkeypatch.setattr(onnx_cuda, "OnnxGraph", Graph)
    streams.vendor.device = "cuda:3"
    OnnxCudaGraph(source, streams)
    name, options = asked[0]
    assert name == "CUDAExecutionProvider"
    assert (options["device_id"], options["use_tf32"]) == ("3", "0")


def test_runs_as_the_model_says(graph):
    """Signature and results are those of the file."""
    assert [spec.name for spec in graph.signature.inputs] == ["ids", "attention_mask"]
    assert not graph.static_shapes
    graph.compile([])
    graph.prepare(INPUTS)
    (name,) = [spec.name for spec in graph.signature.outputs]
    assert graph.run(INPUTS, {}, exclusive=True)[name].shape == (2, 4)
    assert graph.workspace_bytes({}) == 0
    graph.close()


@pytest.mark.parametrize(
    ("said", "meant"), [("fake fault", DeviceFault), ("shape mismatch", GraphFailed)]
)
def test_a_fault_of_the_gpu_is_told_apart(graph, monkeypatch, said, meant):
    """After a fault nothing runs any more, so the executor must end."""

    def fail(*_):
        raise RuntimeError(said)

    monkeypatch.setattr(onnx_graph.OnnxGraph, "_run_bound", fail)
    with pytest.raises(meant, match=said):
        graph.run(INPUTS, {}, exclusive=False)
