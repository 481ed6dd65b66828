#!/usr/bin/env bash
# Expected: `convert_float_to_float16(keep_io_types=True)` of onnxconverter-common keeps outputs in FP32.
# Happens: an output that comes straight out of an operator which stays in FP32 (`Resize`, `Upsample`, `CumSum`, and
#   each of `op_block_list`) becomes FP16, beside others that are kept; a file that ends with a `Cast` from whole numbers
#   does not load. onnxruntime.transformers.float16, which began as the same code, is right in all of them.
# Versions: onnxconverter-common 1.16.0, onnxruntime 1.31.1, onnx 1.23.2
# Source: onnxconverter_common/float16.py, `keep_io_types` and DEFAULT_OP_BLOCK_LIST
# Guess: missed ("kept, whatever computes them")
. "$(dirname "$0")/lib.sh"
packages onnxconverter-common==1.16.0 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
python 2>/dev/null <<'PY'
import numpy as np, onnx, onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxconverter_common import float16
from onnxruntime.transformers import float16 as runtimes

x = np.random.default_rng(0).standard_normal((1, 1, 2, 3)).astype(np.float32)
held = {"zoom": np.array([1, 1, 2, 2], np.float32), "axis": np.array(3)}
nodes = {
    "Relu": [("Relu", ["x"], {})],
    "Resize": [("Resize", ["x", "", "zoom"], {})],
    "CumSum": [("CumSum", ["x", "axis"], {})],
    "Resize, then Relu": [("Resize", ["x", "", "zoom"], {}), ("Relu", ["h0"], {})],
    "Cast from whole numbers": [("Cast", ["x"], {"to": TensorProto.INT32}), ("Cast", ["h0"], {"to": TensorProto.FLOAT})],
}

def made(steps):
    last = len(steps) - 1
    rows = [helper.make_node(kind, takes, ["y" if at == last else f"h{at}"], name=f"n{at}", **how)
            for at, (kind, takes, how) in enumerate(steps)]
    tensors = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", x.shape), ("y", None))]
    taken = [numpy_helper.from_array(held[name], name) for name in held if any(name in step[1] for step in steps)]
    graph = helper.make_graph(rows, "g", tensors[:1], tensors[1:], taken)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

def answered(model):
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0].dtype.name
    except Exception:
        return "does not load"

seen = {}
for name, steps in nodes.items():
    seen[name] = tuple(answered(module.convert_float_to_float16(made(steps), keep_io_types=True)) for module in (float16, runtimes))
    print(f"{name}: {seen[name][0]}; of onnxruntime.transformers {seen[name][1]}")
theirs = [first for first, _ in seen.values()]
raise SystemExit(theirs != ["float32", "float16", "float16", "float32", "does not load"] or {second for _, second in seen.values()} != {"float32"})
PY
