#!/usr/bin/env bash
# Expected: `com.microsoft.RotaryEmbedding` that turns a part of each head (`rotary_embedding_dim`), as
#   files of Phi and GPT-NeoX have it, gives in OpenVINO what it gives in ONNX Runtime, or is refused.
# Happens: with `interleaved` written OpenVINO answers with other numbers where the heads lie in one
#   dimension; with `interleaved` left to its default it refuses every such node. ONNX's own operator of
#   opset 23 is right in both.
# Versions: openvino 2026.4.1 (ONNX Runtime 1.31.1 is right)
# Source: ONNX Runtime's docs/ContribOperators.md, com.microsoft.RotaryEmbedding
# Guess: missed ("right")
. "$(dirname "$0")/lib.sh"
engines
python <<'PY'
rng = np.random.default_rng(0)
angles = np.arange(16)[:, None] * np.array([1, 0.1])
cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
x, places = rng.standard_normal((1, 4, 16)).astype(np.float32), np.array([[3, 4, 5, 6]])
right = x.reshape(1, 4, 2, 8).copy()
c, s = cosines[places][:, :, None], sines[places][:, :, None]
a, b = right[..., :2].copy(), right[..., 2:4].copy()
right[..., :2], right[..., 2:4] = a * c - b * s, b * c + a * s
right = right.reshape(1, 4, 16)

def model(domain, order, opset, **attributes):
    node = helper.make_node("RotaryEmbedding", order, ["y"], domain=domain, num_heads=2,
                            rotary_embedding_dim=4, **attributes)
    return graph([node], [("x", 1, [None, None, 16]), ("p", 7, [None, None])], [("y", 1, None)],
                 {"c": cosines, "s": sines}, opset)

feeds = {"x": x, "p": places}
written = model("com.microsoft", ["x", "p", "c", "s"], 21, interleaved=0)
first, second = off(ort(written, feeds)[0], right), off(ov(written, feeds)[0], right)
print(f"of {abs(right).max():.1f}: ONNX Runtime is off by {first:.2g}, OpenVINO by {second:.2g}")
try:
    ov(model("com.microsoft", ["x", "p", "c", "s"], 21), feeds)
    refused = False
except RuntimeError as error:
    refused = "unknown attribute 'interleaved'" in str(error)
print("without `interleaved` OpenVINO refuses:", refused)
own = off(ov(model("", ["x", "c", "s", "p"], 23), feeds)[0], right)
print(f"ONNX's own operator in OpenVINO is off by {own:.2g}")
raise SystemExit(not (first < 1e-4 and second > 0.5 and refused and own < 1e-4))
PY
