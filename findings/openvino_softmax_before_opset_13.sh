#!/usr/bin/env bash
# Expected: a `Softmax` of a file of opset 12 or older, whose axis is not the last, is over all axes from
#   that one on, as the operator was defined then (its default axis is 1), or it is refused.
# Happens: OpenVINO takes it for the Softmax of opset 13, over that axis alone, whatever the opset. The
#   `LogSoftmax` of the same file is read as its opset has it: its exponential is another softmax.
# Versions: openvino 2026.4.1 (ONNX Runtime 1.31.1 is right; onnx 1.23.2's own evaluator is wrong, too, of both)
# Source: onnx's operators Softmax-11, Softmax-13, LogSoftmax-11
# Guess: missed ("as LogSoftmax: right"; and that onnx's evaluator knows old opsets)
. "$(dirname "$0")/lib.sh"
engines
python <<'PY'
from onnx.reference import ReferenceEvaluator

x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
one, all_after = (np.exp(x) / np.exp(x).sum(axes, keepdims=True) for axes in (1, (1, 2)))
seen = {}
for opset in 12, 13:
    for kind, read in ("Softmax", np.asarray), ("LogSoftmax", np.exp):
        node = helper.make_node(kind, ["x"], ["y"], axis=1)
        model = graph([node], [("x", 1, ["batch", "rows", "columns"])], [("y", 1, None)], {}, opset)
        made = {"ONNX Runtime": ort(model, {"x": x}), "OpenVINO": ov(model, {"x": x}),
                "onnx": ReferenceEvaluator(onnx.load_from_string(model)).run(None, {"x": x})}
        for name, answer in made.items():
            kinds = [what for what, right in (("one axis", one), ("all after", all_after)) if off(read(answer[0]), right) < 1e-5]
            seen[opset, kind, name] = kinds[0]
            print(f"opset {opset}, {kind} with axis 1 of 3 in {name}: over {kinds[0]}")
wrong = {key for key, kind in seen.items() if kind != ("all after" if key[0] == 12 else "one axis")}
raise SystemExit(wrong != {(12, "Softmax", "OpenVINO"), (12, "Softmax", "onnx"), (12, "LogSoftmax", "onnx")})
PY
