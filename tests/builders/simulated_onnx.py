"""ONNX models that compute what a graph of the `acl` simulator does.

The fake `atc` compiles them into models of the simulator, so that one file runs on the CPU and on a
simulated NPU.
"""

import base64
import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from acl_simulator.graphs import (
    Affine,
    ChannelMeans,
    Echo,
    Graph,
    MatMul,
    OnnxPhotos,
    Sums,
    TokenRows,
    TopK,
)

NOTE = "acl_simulator"
BATCHED = ("batch", "length")


def onnx_of(graph: Graph, dims: tuple[str | int, ...] = BATCHED) -> bytes:
    """Return a serialised model; `dims` are those of its input, sizes or names of free axes."""
    (name,) = graph.inputs
    node = helper.make_node
    given = {key: value.astype(_numpy(graph)) for key, value in graph.weights().items()}
    shapes = {"y": dims}
    if isinstance(graph, Echo):
        nodes = [node("Identity", [name], ["y"])]
    elif isinstance(graph, Affine):
        nodes = [node("Mul", [name, "a"], ["ax"]), node("Add", ["ax", "b"], ["y"])]
    elif isinstance(graph, Sums):
        nodes = [node("ReduceSum", [name, "last"], ["y"], keepdims=0)]
        given, shapes = {"last": np.array([-1])}, {"y": dims[:-1]}
    elif isinstance(graph, MatMul):
        nodes = [node("MatMul", [name, "w"], ["y"])]
        shapes = {"y": (*dims[:-1], graph.columns)}
    elif isinstance(graph, ChannelMeans):
        nodes = [node("ReduceMean", [name], ["y"], axes=[2, 3], keepdims=0)]
        shapes = {"y": dims[:2]}
    elif isinstance(graph, TokenRows):
        nodes = [node("Gather", ["table", name], ["y"])]
        given, shapes = graph.weights(), {"y": (*dims, graph.width)}
    elif isinstance(graph, TopK):
        nodes = [node("TopK", [name, "k"], list(graph.outputs))]
        given = {"k": np.array([graph.count])}
        shapes = dict.fromkeys(graph.outputs, (*dims[:-1], graph.count))
    else:
        raise TypeError(f"there is no ONNX model of {graph}")
    built = helper.make_graph(
        nodes,
        type(graph).__name__,
        [_tensor(name, graph.inputs[name], dims)],
        [_tensor(output, graph.outputs[output], shapes[output]) for output in graph.outputs],
        [numpy_helper.from_array(value, key) for key, value in given.items()],
    )
    model = helper.make_model(built, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    helper.set_model_props(model, {NOTE: json.dumps(graph.to_json())})
    onnx.checker.check_model(model)
    return model.SerializeToString()


def of_photos(file: bytes) -> bytes:
    """Return an ONNX model of photos as it is, which the simulator runs, too."""
    graph = OnnxPhotos(file=base64.b64encode(file).decode())
    model = onnx.load_from_string(file)
    helper.set_model_props(model, {NOTE: json.dumps(graph.to_json())})
    return model.SerializeToString()


def _numpy(graph: Graph) -> np.dtype:
    return np.dtype(helper.tensor_dtype_to_np_dtype(_element(graph.dtype)))


def _tensor(name: str, dtype: str, dims: tuple[str | int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _element(dtype), list(dims))


def _element(dtype: str) -> int:
    names = {"FP16": "FLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE"}
    return TensorProto.DataType.Value(names.get(dtype, dtype.replace("BF16", "BFLOAT16")))
