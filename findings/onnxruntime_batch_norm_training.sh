#!/usr/bin/env bash
# Expected: a run of an inference session is a function of its inputs.
# Happens: a `BatchNormalization` with `training_mode` 1, which an export in training mode leaves in the
#   file, goes on training: its statistics live in the session, and the same input has another answer each time.
# Versions: onnxruntime 1.31.1
# Source: onnx's operator BatchNormalization-15; met while a model was run twice
# Guess: missed ("the same answers; two runs with one input are equal")
. "$(dirname "$0")/lib.sh"
engines
python <<'PY'
parts = {"s": 1.0, "b": 0.0, "m": 0.0, "v": 1.0}
node = helper.make_node("BatchNormalization", ["x", *parts], ["y", "mean", "var"], training_mode=1, momentum=0.5)
scaled = helper.make_node("Add", ["mean", "zero"], ["seen"])
constants = {name: np.array([value], np.float32) for name, value in {**parts, "zero": 0}.items()}
model = graph([node, scaled], [("x", 1, [None, 1])], [("y", 1, None), ("seen", 1, None)], constants, 17)
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
x = np.array([[1], [2], [3]], np.float32)
seen = [session.run(["seen"], {"x": x})[0].item() for _ in range(4)]
print("running mean at each run of one input:", seen)
raise SystemExit(len(set(seen)) == 1)
PY
