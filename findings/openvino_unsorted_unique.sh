#!/usr/bin/env bash
# Expected: `Unique` with `sorted` 0 keeps the values in the order of their first appearance.
# Happens: unless its third output (where each value went) is used, OpenVINO answers with zeros from the
#   second value on, [3, 0, 0] for [3, 1, 3, 2], and with ones as counts. Sorted it is right.
# Versions: openvino 2026.4.1 (ONNX Runtime 1.31.1 is right)
# Source: onnx's operator Unique-11
# Guess: missed ("right")
. "$(dirname "$0")/lib.sh"
engines
python <<'PY'
x = np.array([3, 1, 3, 2], np.int64)

def unique(outputs, **attributes):
    node = helper.make_node("Unique", ["x"], outputs, **attributes)
    return graph([node], [("x", 7, [None])], [(name, 7, [None]) for name in outputs], {}, 17)

right = [3, 1, 2]
first, second = ort(unique(["y"], sorted=0), {"x": x})[0], ov(unique(["y"], sorted=0), {"x": x})[0]
all_used = ov(unique(["y", "i", "v", "c"], sorted=0), {"x": x})[0]
print(f"ONNX Runtime {first.tolist()}, OpenVINO {second.tolist()}, with all outputs used {all_used.tolist()}")
raise SystemExit(not (first.tolist() == right and second.tolist() == [3, 0, 0] and all_used.tolist() == right))
PY
