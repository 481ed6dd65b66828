#!/usr/bin/env bash
# Expected: `tf.scatter_nd` adds up values for one place, and `tf.one_hot` of -1 (a label left out) is a
#   row of zeros, also in the converted file.
# Happens: the last value for a place wins, and -1 marks the last class, in both engines:
#   ONNX's `ScatterND` without a reduction and its `OneHot`, which counts negative indices from the end.
#   `tf.tensor_scatter_nd_add` keeps the sum.
# Versions: tf2onnx 1.17.0, tensorflow-cpu 2.21.0, onnxruntime 1.31.1, openvino 2026.4.1
# Source: tf.scatter_nd, tf.one_hot; onnx's operators ScatterND-16, OneHot-11
# Guess: missed ("sums kept; zeros")
. "$(dirname "$0")/lib.sh"
tensorflow
python 2>/dev/null <<'PY'
places, values = np.array([[1], [1], [3]], np.int32), np.array([1, 2, 3], np.float32)
rows = [three(lambda i, v: tf.scatter_nd(i, v, [4]), places, values),
        three(lambda i: tf.one_hot(i, 3), np.array([0, -1, 5], np.int32))]
for right, first, second in rows:
    print(f"TensorFlow {right.tolist()}, ONNX Runtime {first.tolist()}, OpenVINO {second.tolist()}")
added = three(lambda x, i, v: tf.tensor_scatter_nd_add(x, i, v), np.zeros(4, np.float32), places, values)
(sums, first, second), (zeros, third, fourth) = rows
raise SystemExit(not (
    sums.tolist() == [0, 3, 0, 3] and first.tolist() == second.tolist() == [0, 2, 0, 3]
    and zeros[1].tolist() == [0, 0, 0] and third[1].tolist() == fourth[1].tolist() == [0, 0, 1]
    and all(part.tolist() == sums.tolist() for part in added)))
PY
