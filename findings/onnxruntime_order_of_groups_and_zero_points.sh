#!/usr/bin/env bash
# Expected: `MatMulNBits` with `g_idx` (the groups of a GPTQ checkpoint) and zero points packed two in a
#   byte gives the same numbers as with the same zero points written as floats.
# Happens: on the CPU the packed zero points give other numbers, even where `g_idx` is the plain order;
#   with floats, without zero points, or without `g_idx` all is right. Weights of two bits are wrong with
#   `g_idx` whatever the zero points.
# Versions: onnxruntime 1.31.1
# Source: ONNX Runtime's docs/ContribOperators.md, com.microsoft.MatMulNBits, `zero_points`, `g_idx`
# Guess: missed ("right")
. "$(dirname "$0")/lib.sh"
engines
python <<'PY'
rng = np.random.default_rng(0)
K, N, BLOCK = 128, 24, 32
codes = rng.integers(0, 16, (N, K)).astype(np.uint8)
zeros = rng.integers(4, 12, (N, K // BLOCK)).astype(np.uint8)
scales = rng.uniform(0.05, 0.2, (N, K // BLOCK)).astype(np.float32)
packed = (codes[:, 0::2] | codes[:, 1::2] << 4).reshape(N, K // BLOCK, BLOCK // 2)
groups = (np.arange(K) // BLOCK).astype(np.int32)
x = rng.standard_normal((3, K)).astype(np.float32)
right = x @ ((codes.astype(np.float32) - zeros[:, groups]) * scales[:, groups]).T
seen = {}
for name, held, order in (
    ("packed", zeros[:, 0::2] | zeros[:, 1::2] << 4, ""),
    ("floats, g_idx", zeros.astype(np.float32), "g"),
    ("packed, g_idx", zeros[:, 0::2] | zeros[:, 1::2] << 4, "g"),
):
    node = helper.make_node("MatMulNBits", ["x", "w", "s", "z", order], ["y"], domain="com.microsoft",
                            K=K, N=N, bits=4, block_size=BLOCK)
    model = graph([node], [("x", 1, ["rows", K])], [("y", 1, None)],
                  {"w": packed, "s": scales, "z": held, **({"g": groups} if order else {})})
    seen[name] = off(ort(model, {"x": x})[0], right)
    print(f"zero points {name}: of {abs(right).max():.1f} off by {seen[name]:.2g}")
two = codes & 3
packed = (two[:, 0::4] | two[:, 1::4] << 2 | two[:, 2::4] << 4 | two[:, 3::4] << 6).reshape(N, K // BLOCK, -1)
node = helper.make_node("MatMulNBits", ["x", "w", "s", "", "g"], ["y"], domain="com.microsoft",
                        K=K, N=N, bits=2, block_size=BLOCK)
model = graph([node], [("x", 1, ["rows", K])], [("y", 1, None)], {"w": packed, "s": scales, "g": groups})
right = x @ ((two.astype(np.float32) - 2) * scales[:, groups]).T
seen["two bits, g_idx"] = off(ort(model, {"x": x})[0], right)
print(f"two bits, g_idx: of {abs(right).max():.1f} off by {seen['two bits, g_idx']:.2g}")
raise SystemExit(not (seen["two bits, g_idx"] > 1 and seen["packed"] < 1e-3 and seen["floats, g_idx"] < 1e-3 and seen["packed, g_idx"] > 1))
PY
