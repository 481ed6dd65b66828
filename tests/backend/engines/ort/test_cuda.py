"""ONNX Runtime on a GPU: what is asked of it. That it computes is the contract's matter."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnxruntime.capi.onnxruntime_pybind11_state import RuntimeException as Raised

from builders.graphs import accumulator, masked_mean, scaled
from fakes.torch_vendor import FakeVendor
from ge_backend.device.base import GraphSource
from ge_backend.device.resident.buffers import Bound, BoundTensor, Copy
from ge_backend.device.resident.state_layout import StateLayout
from ge_backend.device.resident.states import StateStore, open_states
from ge_backend.engines.ort import cuda as onnx_cuda
from ge_backend.engines.ort import graph as onnx_graph
from ge_backend.engines.ort import session as onnx_session
from ge_backend.engines.ort.cuda import OnnxCudaGraph
from ge_backend.engines.torch import cuda as torch_cuda
from ge_backend.engines.torch.streams import Streams
from ge_backend.errors import DeviceFault, DeviceUnavailable, GraphFailed, ModelError, OutOfMemory
from ge_backend.model.config.sequence_batching import State
from ge_backend.tensors import DATA_TYPES

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
    assert not graph.shape_policy.prepared
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

    for way in ("_run_bound", "_run_copied"):
        monkeypatch.setattr(onnx_graph.OnnxGraph, way, fail)
    with pytest.raises(meant, match=said):
        graph.run(INPUTS, {}, exclusive=False)


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (Raised("bfc_arena.cc:376 Failed to allocate memory for requested buffer"), OutOfMemory),
        (Raised("CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc"), OutOfMemory),
        (RuntimeError("CUDA failure 2: out of memory ; expr=cudaStreamCreate"), OutOfMemory),
        (Raised("CUDA failure 700: an illegal memory access was encountered"), DeviceFault),
        (Raised("This is an invalid model"), ModelError),
        (RuntimeError("CUDA_PATH is set but CUDA wasnt able to be loaded"), DeviceUnavailable),
    ],
)
def test_what_fails_at_load_is_not_always_the_file(source, streams, monkeypatch, error, meant):
    """Room is made where memory is short, and the executor ends where the GPU broke."""

    def fail(*_, **__):
        raise error

    vendor, gpu = streams.vendor, "CUDAExecutionProvider"
    vendor.device = "cuda:0"
    monkeypatch.setattr(vendor, "is_fault", lambda said: bool(torch_cuda._FAULT.search(str(said))))
    monkeypatch.setattr(
        vendor, "is_out_of_memory", lambda said: bool(torch_cuda._NO_MEMORY.search(str(said)))
    )
    monkeypatch.setattr(onnx_session.onnxruntime, "get_available_providers", lambda: [gpu])
    monkeypatch.setattr(onnx_session.onnxruntime, "InferenceSession", fail)
    with pytest.raises(meant):
        OnnxCudaGraph(source, streams)
    assert not streams._capturing.locked()


def test_a_session_begins_and_ends_while_nothing_is_captured(source, streams, monkeypatch):
    """ONNX Runtime waits for the whole GPU then, as cuBLAS does."""

    class Graph:
        signature = None

        def __init__(self, *_, **__):
            self.close()

        def close(self):
            seen.append(streams._capturing.locked())

    seen = []
    monkeypatch.setattr(onnx_cuda, "OnnxGraph", Graph)
    OnnxCudaGraph(source, streams).close()
    assert seen == [True, True]
    assert not streams._capturing.locked()


@pytest.fixture
def on_cpu(streams, monkeypatch, tmp_path):
    """A function that loads a model for the CPU's provider in the place of CUDA's."""
    monkeypatch.setattr(onnx_cuda, "PROVIDER", "CPUExecutionProvider")
    monkeypatch.setattr(onnx_cuda, "OPTIONS", {})

    def load(content):
        path = tmp_path / "model.onnx"
        path.write_bytes(content)
        return OnnxCudaGraph(GraphSource.of(path), streams)

    return load


FP32 = DATA_TYPES["FP32"]
H = State(input="h", output="h_next", dtype=FP32, dims=(1,), initial_dims=(1,), initial_file="")


@pytest.mark.parametrize("hidden", [frozenset(), frozenset({"h_next"})], ids=["shown", "hidden"])
def test_states_stay_on_the_device(on_cpu, hidden):
    """A hundred random batches are what host memory gives, to the bit."""
    graph = on_cpu(accumulator())
    layout = StateLayout(states=(H,), count=4, batched=True, hidden=hidden)
    pair = open_states(graph, layout), StateStore(graph, layout, None)
    assert [one.on_device for one in pair] == [("h",), ()]
    generator, known = np.random.default_rng(3), set()
    for _ in range(100):
        ids = generator.permutation(4)[: generator.integers(1, 5)].tolist()
        starting = [slot for slot in ids if slot not in known]
        known.update(ids)
        x = generator.standard_normal((4, 1)).astype(np.float32)
        place = np.zeros((4, 1), np.float32)
        ours, theirs = (
            one.run({"x": x}, {"h_next": place.copy()}, ids, starting, rows=4, exclusive=False)[0]
            for one in pair
        )
        assert set(ours) == {"y", "h_next"} - hidden
        for name, value in ours.items():
            assert value.tobytes() == theirs[name].tobytes()


def test_an_output_that_stays_comes_into_its_place_as_well(on_cpu):
    """Where it fits; the state is the same memory's."""
    states = open_states(
        on_cpu(accumulator()), StateLayout(states=(H,), count=1, batched=True, hidden=frozenset())
    )
    place, wrong = np.zeros((1, 1), np.float32), np.zeros((2, 1), np.float32)
    for total, given, starting in ((1, place, [0]), (2, wrong, []), (3, place, [])):
        x = np.ones((1, 1), np.float32)
        results, _ = states.run({"x": x}, {"h_next": given}, [0], starting, rows=1, exclusive=False)
        assert results["h_next"].tolist() == [[total]]
        assert (results["h_next"] is given) == (given is place)


def test_what_is_kept_in_another_type_is_refused(on_cpu):
    """Its bytes would be read as something that they are not."""
    graph = on_cpu(scaled())
    buffer = graph.device_memory().allocate(24, "a test")
    x = BoundTensor(dtype=DATA_TYPES["INT32"], shape=(2, 3), copies=(Copy(0, buffer, 0, 24),))
    with pytest.raises(GraphFailed, match=r"'x' is FP32.*what is kept is INT32"):
        graph.run_bound({"scale": np.float32(2)}, {}, Bound(inputs={"x": x}))


def test_only_numbers_that_torch_can_copy_have_buffers(on_cpu):
    """Texts are never on the device."""
    from onnx import TensorProto, helper

    from builders.graphs import graph

    node = helper.make_node("Identity", ["x"], ["y"])
    text = ("x", TensorProto.STRING, ["batch"]), ("y", TensorProto.STRING, ["batch"])
    assert on_cpu(graph([node], text[:1], text[1:])).device_memory() is None


def test_an_output_that_is_an_input_stays_too(on_cpu):
    """ONNX Runtime does not write it to the place it was bound to."""
    from onnx import TensorProto, helper

    from builders.graphs import graph

    loaded = on_cpu(
        graph(
            [helper.make_node("Identity", ["x"], ["y"])],
            [("x", TensorProto.FLOAT, ["batch"])],
            [("y", TensorProto.FLOAT, ["batch"])],
        )
    )
    memory = loaded.device_memory()
    buffer = memory.allocate(8, "a test")
    y = BoundTensor(dtype=FP32, shape=(2,), copies=(Copy(0, buffer, 0, 8),))
    x = np.array([3, 4], np.float32)
    assert loaded.run_bound({"x": x}, {}, Bound(outputs={"y": y}, hidden=frozenset({"y"}))) == {}
    given = BoundTensor(dtype=FP32, shape=(2,), copies=(Copy(0, buffer, 0, 8),))
    assert loaded.run_bound({}, {}, Bound(inputs={"x": given}))["y"].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("said", "meant"), [("fake fault", DeviceFault), ("fake out of memory", OutOfMemory)]
)
def test_what_torch_says_of_the_device_is_told_apart(graph, streams, monkeypatch, said, meant):
    """Where it copies as well as where it computes."""

    def fail(nbytes):
        raise RuntimeError(said)

    monkeypatch.setattr(streams.vendor, "empty", fail)
    with pytest.raises(meant, match=said):
        graph.run_bound(INPUTS, {}, Bound())
