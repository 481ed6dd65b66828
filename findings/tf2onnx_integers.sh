#!/usr/bin/env bash
# Expected: `//` and `%` of negative integers keep TensorFlow's meaning (towards minus infinity), as those
#   of floats do.
# Happens: tf2onnx writes ONNX's `Div`, which cuts towards zero: -7 // 2 is -3 and -7 % 2 is -1, in both
#   engines. Floats are right.
# Versions: tf2onnx 1.17.0, tensorflow-cpu 2.21.0, onnxruntime 1.31.1, openvino 2026.4.1
# Source: tf.math.floordiv and tf.math.floormod; onnx's operator Div-14 (integer division truncates)
# Guess: missed ("right")
. "$(dirname "$0")/lib.sh"
tensorflow
python 2>/dev/null <<'PY'
a, b = np.array([-7, 7, -1, 6], np.int32), np.array([2, -2, 3, 3], np.int32)
holds = True
for name, function, cut in ("//", lambda a, b: a // b, [-3, -3, 0, 2]), ("%", lambda a, b: a % b, [-1, 1, -1, 0]):
    right, first, second = three(function, a, b)
    print(f"{a.tolist()} {name} {b.tolist()}: TensorFlow {right.tolist()}, ONNX Runtime {first.tolist()}, OpenVINO {second.tolist()}")
    right_f, first_f, second_f = three(function, a.astype(np.float32), b.astype(np.float32))
    holds &= right.tolist() != cut and first.tolist() == second.tolist() == cut
    holds &= (right_f == right).all() and (first_f == right).all() and (second_f == right).all()
raise SystemExit(not holds)
PY
