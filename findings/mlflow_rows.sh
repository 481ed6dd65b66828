#!/usr/bin/env bash
# Expected: an ONNX model of one input [batch, 2] and one output [batch, 2], saved with mlflow.onnx and
#   asked through pyfunc with a DataFrame, answers two rows for two rows, by the columns' names.
# Happens: the output is flattened into one column: four rows for two. Names of columns do not count, their
#   order does. A float64 array for an FP32 model is not refused but rounded.
# Versions: mlflow-skinny 3.17.2, onnx 1.23.2, onnxruntime 1.31.1, pandas 3.1.1
# Source: mlflow/onnx/__init__.py, _OnnxModelWrapper.predict
# Guess: missed ("a dict of arrays, as for arrays; float64 is an error")
. "$(dirname "$0")/lib.sh"
packages mlflow-skinny==3.17.2 onnx==1.23.2 onnxruntime==1.31.1 pandas==3.1.1 numpy==2.4.6
python 2>/dev/null <<'PY'
import tempfile
import mlflow.onnx, mlflow.pyfunc, numpy as np, pandas
from onnx import TensorProto, helper

rows = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in "xy"]
made = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", rows[:1], rows[1:])
folder = tempfile.mkdtemp() + "/model"
mlflow.onnx.save_model(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder)
model = mlflow.pyfunc.load_model(folder)
x = np.array([[1, 2], [3, 4]], np.float64)
table = model.predict(pandas.DataFrame(x, columns=["a", "b"]))
swapped = model.predict(pandas.DataFrame(x, columns=["b", "a"]))
array = model.predict(x)["y"]
print("DataFrame:", table.to_dict("list"), "names swapped:", swapped.to_dict("list"), "array:", array.tolist(), array.dtype)
raise SystemExit(not (table.shape == (4, 1) and table.equals(swapped) and array.shape == (2, 2) and array.dtype == np.float32))
PY
