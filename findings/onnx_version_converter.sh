#!/usr/bin/env bash
# Expected: `onnx.version_converter.convert_version` keeps what a file computes, or refuses.
# Happens: from opset 9 or 10 to 11 and later a linear `Upsample` or `Resize` counts its points from the middles of
#   pixels, where it counted from their corners: the step adds no `coordinate_transformation_mode`, whose default is
#   another (with "nearest" some scales, as 1.3). `Hardmax` without an axis takes all axes from its own on before
#   opset 13, and one afterwards (`Softmax` is converted with care). Downwards, a Softmax of 13 over one axis becomes
#   one of 11 over several. The file's functions are dropped, so that it does not load.
# Versions: onnx 1.23.2, onnxruntime 1.31.1
# Source: onnx's operators Resize-10 and Resize-11, Hardmax-11 and Hardmax-13, Softmax-11 and Softmax-13
# Guess: missed ("right or refused, each way; functions converted")
. "$(dirname "$0")/lib.sh"
engines
python 2>/dev/null <<'PY'
from onnx.version_converter import convert_version

rng = np.random.default_rng(0)
image, rows = rng.standard_normal((1, 1, 6, 6)).astype(np.float32), rng.standard_normal((2, 3, 4)).astype(np.float32)

def one(operator, opset, x, *held, functions=(), domain="", **attributes):
    names = [f"c{at}" for at in range(len(held))]
    node = helper.make_node(operator, ["x", *names], ["y"], domain=domain, **attributes)
    tensors = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", x.shape), ("y", None))]
    made = helper.make_graph([node], "g", tensors[:1], tensors[1:], [numpy_helper.from_array(*pair) for pair in zip(held, names)])
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(made, opset_imports=opsets, ir_version=8, functions=functions)

def scale(by):
    return np.array([1, 1, by, by], np.float32)

own = helper.make_function("own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 11)])
cases = {
    "Resize 10 to 13, linear": (one("Resize", 10, image, scale(2), mode="linear"), image, 13),
    "Upsample 9 to 13, linear": (one("Upsample", 9, image, scale(2), mode="linear"), image, 13),
    "Resize 10 to 13, nearest by 2": (one("Resize", 10, image, scale(2)), image, 13),
    "Resize 10 to 13, nearest by 1.3": (one("Resize", 10, image, scale(1.3)), image, 13),
    "Softmax 11 to 13": (one("Softmax", 11, rows), rows, 13),
    "Hardmax 11 to 13": (one("Hardmax", 11, rows), rows, 13),
    "Softmax 13 to 11, last axis": (one("Softmax", 13, rows), rows, 11),
    "Softmax 13 to 11, axis 1": (one("Softmax", 13, rows, axis=1), rows, 11),
    "ReduceSum 11 to 13": (one("ReduceSum", 11, rows, axes=[1]), rows, 13),
    "a function, 11 to 13": (one("Twice", 11, rows, functions=[own], domain="own"), rows, 13),
}
seen = {}
for name, (model, x, to) in cases.items():
    right = ort(model.SerializeToString(), {"x": x})[0]
    after = convert_version(model, to)
    try:
        far = off(ort(after.SerializeToString(), {"x": x})[0], right)
        seen[name] = "other answers" if far > 0.1 else "same"
    except Exception:
        far, seen[name] = float("nan"), f"does not load; functions: {len(after.functions)} of {len(model.functions)}"
    print(f"{name}: {seen[name]} ({far:.2g})")
wrong = {name for name, what in seen.items() if what == "other answers"}
expected = {"Resize 10 to 13, linear", "Upsample 9 to 13, linear", "Resize 10 to 13, nearest by 1.3", "Hardmax 11 to 13",
            "Softmax 13 to 11, axis 1"}
raise SystemExit(wrong != expected or not seen["a function, 11 to 13"].endswith("0 of 1"))
PY
