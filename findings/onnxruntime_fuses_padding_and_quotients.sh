#!/usr/bin/env bash
# Expected: a session's optimiser keeps what a graph computes: a maximum over a picture padded with zeros is
#   never below zero at the edge, and in whole numbers 1 / 2 * 6 is 0.
# Happens: `Pad_Fusion` makes of a `Pad` with zeros before a `MaxPool` the pool's own padding, which counts
#   as nothing: -1 for 0 at the edge. `DivMulFusion` makes b / a of 1 / a * b, for whole numbers, too: 3.
#   Both run at the basic level, the lowest there is; without optimisation, or with the two in
#   `disabled_optimizers`, all is right.
# Versions: onnxruntime 1.31.1 (OpenVINO 2026.4.1 pads as written; it is right in the quotients of INT32)
# Source: onnx's operators Pad-21, MaxPool-22, Div-14; met by comparing pairs of operators with the optimiser
#   on and off
# Guess: missed ("fused only where the padding is the least number; only reals")
. "$(dirname "$0")/lib.sh"
engines
python <<'PY'
pad = [helper.make_node("Pad", ["x", "ends"], ["p"]), helper.make_node("MaxPool", ["p"], ["y"], kernel_shape=[3, 3])]
padded = graph(pad, [("x", 1, ["batch", 1, "h", "w"])], [("y", 1, None)], {"ends": np.array([0, 0, 1, 1, 0, 0, 1, 1])})
divide = [helper.make_node("Div", ["one", "a"], ["q"]), helper.make_node("Mul", ["q", "b"], ["y"])]
divided = graph(divide, [("a", 6, ["n"]), ("b", 6, ["n"])], [("y", 6, None)], {"one": np.int32(1)})
x, whole = np.full((1, 1, 4, 4), -1, np.float32), {"a": np.array([2, 3], np.int32), "b": np.array([6, 7], np.int32)}

def leaving_out(model, feeds, *names):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"], disabled_optimizers=list(names))
    return session.run(None, feeds)[0]

seen = {}
for name, run in (("as it comes", lambda *what: ort(*what)[0]),
                  ("without Pad_Fusion, DivMulFusion", lambda *what: leaving_out(*what, "Pad_Fusion", "DivMulFusion")),
                  ("OpenVINO", lambda model, feeds: ov(model, list(feeds.values()))[0])):
    seen[name] = run(padded, {"x": x})[0, 0, 0, 0].item(), run(divided, whole).tolist()
    print(f"{name}: the first maximum is {seen[name][0]}; 1 / [2, 3] * [6, 7] is {seen[name][1]}")
first, *rest = seen.values()
raise SystemExit(not (first == (-1, [3, 2]) and set(map(str, rest)) == {str((0.0, [0, 0]))}))
PY
