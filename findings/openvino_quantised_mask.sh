#!/usr/bin/env bash
# Expected: a mask of the least FP32 number and 0 that ONNX Runtime's `quantize_static` has quantised (it
#   does so by default where it has seen padding) is a mask in OpenVINO, too.
# Happens: where the ends of what a pair of `QuantizeLinear` and `DequantizeLinear` can hold are further
#   apart than a 255th of the largest FP32 number, OpenVINO's pair answers its least for 0 as well. So
#   nothing is masked: a padded row's attention goes to its padding.
# Versions: openvino 2026.4.1 (ONNX Runtime 1.31.1 is right)
# Source: ONNX's DequantizeLinear: (x - x_zero_point) * x_scale
# Guess: missed ("a step of 1.3e36 is no more than a scale")
. "$(dirname "$0")/lib.sh"
quantiser
python <<'PY'
import logging

logging.disable(logging.CRITICAL)
f = np.float32
nodes = [helper.make_node("Where", ["mask", "zero", "low"], ["bias"]),
         helper.make_node("Add", ["x", "bias"], ["scores"]),
         helper.make_node("Softmax", ["scores"], ["y"], axis=-1)]
inputs = [("x", TensorProto.FLOAT, [None, 4]), ("mask", TensorProto.BOOL, [None, 4])]
feeds = {"x": np.zeros((1, 4), f), "mask": np.array([[True, True, False, False]])}

seen = {}
for low in np.finfo(f).min, f(-1e30):
    constants = {"zero": f(0), "low": low}
    model = graph(nodes, inputs, [("y", TensorProto.FLOAT, [None, 4])],
                  {name: np.array(value) for name, value in constants.items()})
    quantised = quantise(model, feeds, quant_format=QuantFormat.QDQ, op_types_to_quantize=["Where", "Add"])
    seen[low] = ort(quantised, feeds)[0], ov(quantised, feeds)[0]
    print(f"mask of {low:.2g}: ONNX Runtime {seen[low][0][0]}, OpenVINO {seen[low][1][0]}")
right, even = [[0.5, 0.5, 0, 0]], [[0.25] * 4]
first, second = seen.values()
held = off(first[0], right) < 1e-3 and off(first[1], even) < 1e-3
raise SystemExit(not (held and all(off(each, right) < 1e-3 for each in second)))
PY
