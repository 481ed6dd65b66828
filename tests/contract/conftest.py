"""The engines that the contract is checked on, and the same small graphs for each of them.

A new device joins by one more class with `open` and `write`, and one more entry in `ENGINES`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from contract.om_engine import CheckedNpu, OmEngine
from ge_backend.device.base import Device, Graph, GraphSource, open_device
from ge_backend.errors import DeviceUnavailable

ECHO = "echo"  # y = x, both [batch, length]
SCALAR = "scalar"  # y = x, both []
SUMS = "sums"  # y [batch] = sum of x [batch, length]
KEPT = "kept"  # y [?] = those elements of x [length] that are not zero
PASSED = "passed"  # as SUMS, and x itself is an output, too


class NullEngine:
    suffix = ".null"

    def write(self, path: Path, kind: str, dtype: str) -> None:
        dims = {ECHO: ["batch", "length"], SCALAR: [], SUMS: ["batch", "length"], KEPT: ["length"]}
        out = {ECHO: ["batch", "length"], SCALAR: [], SUMS: ["batch"], KEPT: [-1]}
        of = SUMS if kind == PASSED else kind
        compute = "sum" if of == SUMS else "echo"
        x = {"name": "x", "dtype": dtype, "dims": dims[of]}
        y = {"name": "y", "dtype": dtype, "dims": out[of], "compute": compute, "of": "x"}
        passed = [{**x, "compute": "echo", "of": "x"}] if kind == PASSED else []
        path.write_text(json.dumps({"inputs": [x], "outputs": [y, *passed]}))


class OnnxEngine:
    suffix = ".onnx"

    def write(self, path: Path, kind: str, dtype: str) -> None:
        from onnx import TensorProto, helper

        of = SUMS if kind == PASSED else kind
        names = {"BYTES": "STRING", "FP16": "FLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE"}
        element = TensorProto.DataType.Value(names.get(dtype, dtype.replace("BF16", "BFLOAT16")))
        axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
        zero = helper.make_tensor("zero", element, [], [0]) if kind == KEPT else None
        nodes = {
            ECHO: [helper.make_node("Identity", ["x"], ["y"])],
            SCALAR: [helper.make_node("Identity", ["x"], ["y"])],
            SUMS: [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)],
            KEPT: [
                helper.make_node("Equal", ["x", "zero"], ["dropped"]),
                helper.make_node("Not", ["dropped"], ["kept"]),
                helper.make_node("Compress", ["x", "kept"], ["y"], axis=0),
            ],
        }[of]
        dims = {ECHO: ["batch", "length"], SCALAR: [], SUMS: ["batch", "length"], KEPT: ["length"]}
        out = {ECHO: ["batch", "length"], SCALAR: [], SUMS: ["batch"], KEPT: [None]}
        x = helper.make_tensor_value_info("x", element, dims[of])
        y = helper.make_tensor_value_info("y", element, out[of])
        graph = helper.make_graph(
            nodes,
            kind,
            [x],
            [y, x] if kind == PASSED else [y],
            {SUMS: [axes], KEPT: [zero]}.get(of, []),
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        path.write_bytes(model.SerializeToString())


class OpenVinoEngine(OnnxEngine):
    name = "openvino"


class TorchEngine:
    suffix = ".pt2"

    def write(self, path: Path, kind: str, dtype: str) -> None:
        import torch

        from ge_backend.tensors import DATA_TYPES

        element = getattr(torch, DATA_TYPES[dtype].torch)
        auto = torch.export.Dim.DYNAMIC
        computes = {
            ECHO: lambda x: x,
            SCALAR: lambda x: x,
            SUMS: lambda x: x.sum(1),
            KEPT: lambda x: x[x != 0],
            PASSED: lambda x: (x.sum(1), x),
        }

        class Module(torch.nn.Module):
            def forward(self, x):
                return computes[kind](x)

        of = SUMS if kind == PASSED else kind
        shape = {ECHO: (2, 3), SCALAR: (), SUMS: (2, 3), KEPT: (3,)}[of]
        program = torch.export.export(
            Module(),
            (torch.zeros(shape, dtype=element),),
            dynamic_shapes=(dict.fromkeys(range(len(shape)), auto),),
        )
        symbols = map(str, next(n for n in program.graph.nodes if n.name == "x").meta["val"].shape)
        axes = {ECHO: ["batch", "length"], SCALAR: [], SUMS: ["batch", "length"], KEPT: ["length"]}
        outputs = ["y", "x"] if kind == PASSED else ["y"]
        names = {"outputs": outputs, "axes": dict(zip(symbols, axes[of], strict=True))}
        torch.export.save(program, str(path), extra_files={"ge_names.json": json.dumps(names)})


def fake_accelerator() -> Device:
    from fakes.torch_vendor import FakeVendor
    from ge_backend.engines.kinds.cuda import CudaDevice

    return CudaDevice(FakeVendor())


def prepared(device: Device) -> Device:
    from fakes.torch_vendor import PreparedDevice

    return PreparedDevice(device)


def cuda_for_onnx() -> Device:
    import onnxruntime

    device = open_device("cuda")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise DeviceUnavailable("this onnxruntime is built without CUDA")
    return device


# id -> (device, or what opens it, engine, the library it needs)
ENGINES = {
    "null": ("null", NullEngine(), None),
    "cpu-onnx": ("cpu", OnnxEngine(), "onnxruntime"),
    "cpu-openvino": ("cpu", OpenVinoEngine(), "openvino"),
    "cpu-torch": ("cpu", TorchEngine(), "torch"),
    "fake-eager-torch": (fake_accelerator, TorchEngine(), "torch"),
    "fake-graphs-torch": (lambda: prepared(fake_accelerator()), TorchEngine(), "torch"),
    "npu-om": (CheckedNpu, OmEngine(), None),
    "cuda-onnx": (cuda_for_onnx, OnnxEngine(), "onnxruntime"),
    "cuda-eager-torch": ("cuda", TorchEngine(), "torch"),
    "cuda-graphs-torch": (lambda: prepared(open_device("cuda")), TorchEngine(), "torch"),
}


CUDA = (
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),  # tensors of no elements
)
# Without onnxruntime-gpu there may still be a GPU, so `cuda-onnx` is not marked.
MARKS = {"cuda-eager-torch": CUDA, "cuda-graphs-torch": CUDA}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One device with graphs to load on it; `kind` is what it was opened as, "" if made."""

    id: str
    kind: str
    device: Device
    engine: NullEngine | OnnxEngine | TorchEngine | OmEngine
    folder: Path
    loaded: list[Graph]

    def write(self, kind: str, dtype: str = "FP32") -> Path:
        path = self.folder / f"{kind}-{dtype}{self.engine.suffix}"
        self.engine.write(path, kind, dtype)
        return path

    def load(self, kind: str, dtype: str = "FP32", threads: int = 0) -> Graph:
        name = getattr(self.engine, "name", "")
        path = self.write(kind, dtype)
        graph = self.device.load(GraphSource.of(path, threads=threads, engine=name))
        self.loaded.append(graph)
        return graph


@pytest.fixture(params=[pytest.param(i, marks=MARKS.get(i, ())) for i in ENGINES])
def bench(request, tmp_path):
    name, engine, library = ENGINES[request.param]
    if library:
        pytest.importorskip(library)
    try:
        device = open_device(name) if isinstance(name, str) else name()
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    kind = name if isinstance(name, str) else ""
    bench = Bench(
        id=request.param, kind=kind, device=device, engine=engine, folder=tmp_path, loaded=[]
    )
    yield bench
    for graph in bench.loaded:
        graph.close()
    device.close()
