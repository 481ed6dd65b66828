#!/usr/bin/env bash
# Expected: `tf.image.resize` keeps its method in the converted file, or the conversion fails.
# Happens: `area` becomes another method, off by 0.7 of 1 in both engines; `bicubic` is right in ONNX
#   Runtime and off by 0.03 in OpenVINO; `antialias`, as Keras' layers ask for it, and exact GELU are written with
#   operators that ONNX does not have (ScaleAndTranslate, Erfc): no error from tf2onnx, and no engine
#   loads the file. `bilinear` and `nearest` are right.
# Versions: tf2onnx 1.17.0, tensorflow-cpu 2.21.0, onnxruntime 1.31.1, openvino 2026.4.1
# Source: tf.image.resize, tf.nn.gelu; the list of operators of onnx 1.23.2
# Guess: missed ("bilinear, nearest, bicubic right; antialias refused; GELU right"; area stood with the right ones)
. "$(dirname "$0")/lib.sh"
tensorflow
python 2>/dev/null <<'PY'
image = np.random.default_rng(0).random((1, 5, 7, 3)).astype(np.float32)
seen = {}
for method, size in ("bilinear", (10, 14)), ("nearest", (10, 14)), ("bicubic", (10, 14)), ("area", (3, 4)):
    right, first, second = three(lambda x: tf.image.resize(x, size, method), image)
    seen[method] = off(first, right), off(second, right)
    print(f"{method}: ONNX Runtime is off by {seen[method][0]:.2g}, OpenVINO by {seen[method][1]:.2g}")
strange = []
for function in (lambda x: tf.image.resize(x, (3, 4), antialias=True)), tf.nn.gelu:
    made, _ = tf2onnx.convert.from_function(
        tf.function(function), input_signature=[tf.TensorSpec([None] * 4, tf.float32)], opset=17)
    strange += [node.op_type for node in made.graph.node if not onnx.defs.has(node.op_type, node.domain)]
print("operators that ONNX does not have:", strange)
raise SystemExit(not (max(seen["bilinear"] + seen["nearest"]) < 1e-4 and min(seen["area"]) > 0.1
                      and seen["bicubic"][0] < 1e-4 < 0.01 < seen["bicubic"][1]
                      and strange == ["ScaleAndTranslate", "Erfc"]))
PY
