#!/usr/bin/env bash
# Expected: 4-bit weights of a GPTQ checkpoint with activation order (`MatMulNBits` with its input
#   `g_idx`, which says the group of each row) are computed as ONNX Runtime does, or refused.
# Happens: OpenVINO loads them and answers with unrelated numbers, even where `g_idx` names the groups
#   in their plain order, so that it changes nothing.
# Versions: openvino 2026.4.1 (ONNX Runtime 1.31.1 is right)
# Source: ONNX Runtime's docs/ContribOperators.md, com.microsoft.MatMulNBits, input `g_idx`
# Guess: missed ("refuses it")
. "$(dirname "$0")/lib.sh"
engines
python <<'PY'
rng = np.random.default_rng(0)
K, N, BLOCK = 128, 24, 32
codes = rng.integers(0, 16, (N, K)).astype(np.uint8)
scales = rng.uniform(0.05, 0.2, (N, K // BLOCK)).astype(np.float32)
packed = (codes[:, 0::2] | codes[:, 1::2] << 4).reshape(N, K // BLOCK, BLOCK // 2)
x = rng.standard_normal((3, K)).astype(np.float32)
plain = (np.arange(K) // BLOCK).astype(np.int32)
holds = True
for name, groups in ("plain order", plain), ("reversed", plain[::-1].copy()):
    node = helper.make_node("MatMulNBits", ["x", "w", "s", "", "g"], ["y"], domain="com.microsoft",
                            K=K, N=N, bits=4, block_size=BLOCK)
    model = graph([node], [("x", 1, ["rows", K])], [("y", 1, None)],
                  {"w": packed, "s": scales, "g": groups})
    right = x @ ((codes.astype(np.float32) - 8) * scales[:, groups]).T
    first, second = off(ort(model, {"x": x})[0], right), off(ov(model, {"x": x})[0], right)
    print(f"groups in {name}: of {abs(right).max():.1f}, ONNX Runtime is off by {first:.1g}, OpenVINO by {second:.1f}")
    holds &= first < 1e-3 and second > 5
raise SystemExit(not holds)
PY
