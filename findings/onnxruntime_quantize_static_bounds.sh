#!/usr/bin/env bash
# Expected: `quantize_static` keeps what the operators compute, within the steps of 8 bits (1 % here).
# Happens: it takes out each `Clip` behind a quantised operator, as the quantised range cuts for it. That range
#   always has zero in it, so of a Clip from 2 to 6 the 2 is lost, and of one from -5 to -1 the -1. It quantises
#   the bias of a `Gemm` by `beta`, and leaves `beta` there, so that the bias is off; with QuantFormat.QOperator
#   a Gemm loses it, and the bias's `alpha`, too. The same with 16 bits, and unoptimised.
# Versions: onnxruntime 1.31.1
# Source: onnx's operators Clip-13, Gemm-13; onnxruntime.quantization, `quantize_static`
# Guess: missed ("Clip taken out only where the range is what it cuts; alpha and beta kept or refused")
. "$(dirname "$0")/lib.sh"
quantiser
python 2>/dev/null <<'PY'
rng = np.random.default_rng(0)
x, w, v = (rng.standard_normal(size).astype(np.float32) for size in ((64, 8), (8, 8), (8, 4)))
b = rng.standard_normal(8).astype(np.float32) * 3

def clipped(least, most):
    return [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Clip", ["h", "least", "most"], ["c"]),
            helper.make_node("MatMul", ["c", "v"], ["y"])], {"w": w, "v": v, "least": np.float32(least), "most": np.float32(most)}

def added(**how):
    return [helper.make_node("Gemm", ["x", "w", "b"], ["y"], **how)], {"w": w, "b": b}

plain = onnxruntime.SessionOptions()
plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
seen = {}
for name, (nodes, held) in {
    "Clip from 0 to 6": clipped(0, 6), "Clip from 2 to 6": clipped(2, 6), "Clip from -5 to -1": clipped(-5, -1),
    "Gemm": added(), "Gemm with alpha 0.5": added(alpha=0.5), "Gemm with beta 2": added(beta=2.0),
}.items():
    whole = graph(nodes, [("x", 1, ["batch", 8])], [("y", 1, ["batch", nodes[-1].op_type == "Gemm" and 8 or 4])], held, 17)
    right = ort(whole, {"x": x})[0]
    for format in QuantFormat:
        made = quantise(whole, {"x": x}, quant_format=format, reduce_range=True)
        got = ort(made, {"x": x}, plain)[0]
        seen[name, format.name] = off(got, right) / abs(right).max()
        print(f"{name}, {format.name}: off by {seen[name, format.name]:.1%} of the largest")
wrong = {name for name, far in seen.items() if far > 0.1}
expected = {("Clip from 2 to 6", "QDQ"), ("Clip from 2 to 6", "QOperator"), ("Clip from -5 to -1", "QDQ"),
            ("Clip from -5 to -1", "QOperator"), ("Gemm with alpha 0.5", "QOperator"), ("Gemm with beta 2", "QDQ"),
            ("Gemm with beta 2", "QOperator")}
raise SystemExit(wrong != expected)
PY
