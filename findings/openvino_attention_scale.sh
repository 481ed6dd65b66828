#!/usr/bin/env bash
# Expected: the attribute `scale` of `com.microsoft.Attention`, which optimised files of models with a
#   scale of their own carry, counts as in ONNX Runtime, or the file is refused.
# Happens: OpenVINO leaves it out and divides by the root of the head's size. (`MultiHeadAttention` of
#   the same domain keeps its `scale`.)
# Versions: openvino 2026.4.1 (ONNX Runtime 1.31.1 is right)
# Source: ONNX Runtime's docs/ContribOperators.md, com.microsoft.Attention, `scale`
# Guess: missed ("counts")
. "$(dirname "$0")/lib.sh"
engines
python <<'PY'
rng = np.random.default_rng(0)
weights, bias = rng.standard_normal((16, 48)).astype(np.float32), rng.standard_normal(48).astype(np.float32)
x = rng.standard_normal((2, 5, 16)).astype(np.float32)

def attention(scale):
    q, k, v = (part.reshape(2, 5, 2, 8).swapaxes(1, 2) for part in np.split(x @ weights + bias, 3, -1))
    scores = np.exp(q @ k.swapaxes(2, 3) * scale)
    return (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(2, 5, 16)

node = helper.make_node("Attention", ["x", "w", "b"], ["y"], domain="com.microsoft", num_heads=2, scale=0.1)
model = graph([node], [("x", 1, [None, None, 16])], [("y", 1, None)], {"w": weights, "b": bias})
first, second = ort(model, {"x": x})[0], ov(model, {"x": x})[0]
print(f"scale 0.1: ONNX Runtime is off by {off(first, attention(0.1)):.2g}, OpenVINO by {off(second, attention(0.1)):.2g}")
print(f"OpenVINO against the default scale: {off(second, attention(8**-0.5)):.2g}")
raise SystemExit(not (off(first, attention(0.1)) < 1e-4 and off(second, attention(8**-0.5)) < 1e-4
                      and off(second, attention(0.1)) > 0.1))
PY
