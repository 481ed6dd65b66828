#!/usr/bin/env bash
# Expected: `ConvTranspose` with `output_shape` cuts an odd line at the beginning, as ONNX says, whether
#   or not the size of the batch is known.
# Happens: OpenVINO cuts it at the beginning where all sizes are known and at the end where the batch is
#   free: the same file gives an image moved by one pixel. TensorFlow cuts at the end, so that a file
#   that tf2onnx 1.17.0 made of `tf.nn.conv2d_transpose(padding="SAME")` is right in OpenVINO with a free
#   batch only, and never in ONNX Runtime.
# Versions: openvino 2026.4.1 (ONNX Runtime 1.31.1 follows ONNX)
# Source: onnx's operator ConvTranspose-11, `pads`, the formula for `output_shape`
# Guess: missed (a first guess, that both engines differ whenever the padding is odd, missed as well)
. "$(dirname "$0")/lib.sh"
engines
python <<'PY'
x, w = np.ones((1, 1, 1, 4), np.float32), np.array([1, 2, 4], np.float32).reshape(1, 1, 1, 3)
whole = np.zeros(9)
for i in range(4):
    whole[2 * i : 2 * i + 3] += [1, 2, 4]
print("before the cut:", whole.tolist())
holds = True
for batch, place in (1, slice(1, None)), ("batch", slice(None, -1)):
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[1, 2], output_shape=[1, 8])
    model = graph([node], [("x", 1, [batch, 1, 1, 4])], [("y", 1, None)], {"w": w}, 17)
    first, second = ort(model, {"x": x})[0].ravel(), ov(model, {"x": x})[0].ravel()
    print(f"batch {batch}: ONNX Runtime {first.tolist()}, OpenVINO {second.tolist()}")
    holds &= (first == whole[1:]).all() and (second == whole[place]).all()
raise SystemExit(not holds)
PY
