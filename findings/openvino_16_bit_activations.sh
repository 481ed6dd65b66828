#!/usr/bin/env bash
# Expected: a file that `quantize_static` made with activations of 16 bits answers in OpenVINO as in ONNX
#   Runtime, within a step or two; or it is refused.
# Happens: OpenVINO takes pairs of `QuantizeLinear` and `DequantizeLinear` of 16 bits out, and what they cut
#   off with them. `quantize_static` leaves out each ReLU whose output is quantised without negative numbers,
#   as the cut does its work: so all ReLUs are gone. With 8 bits the same file is right.
# Versions: openvino 2026.4.1, onnxruntime 1.31.1
# Source: onnx's operator QuantizeLinear-21 (it saturates); onnxruntime.quantization, `quantize_static`
# Guess: missed ("within two steps")
. "$(dirname "$0")/lib.sh"
quantiser
python 2>/dev/null <<'PY'
rng = np.random.default_rng(0)
x, first, second = (rng.standard_normal(size).astype(np.float32) for size in ((64, 8), (8, 16), (16, 4)))
nodes = [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("Relu", ["h"], ["r"]),
         helper.make_node("MatMul", ["r", "b"], ["y"])]
whole = graph(nodes, [("x", 1, ["batch", 8])], [("y", 1, ["batch", 4])], {"a": first, "b": second}, 21)
right, linear = np.maximum(x @ first, 0) @ second, x @ first @ second
seen = {}
for kind in QuantType.QUInt8, QuantType.QUInt16:
    made = quantise(whole, {"x": x}, activation_type=kind, weight_type=QuantType.QInt8, reduce_range=True)
    relus = sum(node.op_type == "Relu" for node in onnx.load_from_string(made).graph.node)
    one, other = (engine(made, {"x": x})[0] for engine in (ort, ov))
    seen[kind] = off(one, right), off(other, right), off(other, linear), relus
    print(f"{kind}: {relus} ReLUs left; of {abs(right).max():.1f} ONNX Runtime is off by {seen[kind][0]:.2g}, "
          f"OpenVINO by {seen[kind][1]:.2g}; OpenVINO against the same without a ReLU {seen[kind][2]:.2g}")
eight, sixteen = seen.values()
raise SystemExit(not (eight[3] == sixteen[3] == 0 and max(*eight[:2], sixteen[0], sixteen[2]) < 1 and sixteen[1] > 3))
PY
