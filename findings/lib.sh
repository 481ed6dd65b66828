# Sourced by each script: `packages NAME==VERSION ...` installs into a temporary folder, `python` runs
# what it reads in there. A script ends with 0 where the finding holds, 1 where it has changed, 77 where
# the packages cannot be had. With FINDINGS_FOLDER set (as `make findings` does), scripts that want the
# same packages share one installation.
set -euo pipefail
export PIP_DISABLE_PIP_VERSION_CHECK=1 HF_HUB_OFFLINE=1 ORT_DISABLE_TELEMETRY=1 TF_CPP_MIN_LOG_LEVEL=3 TRANSFORMERS_VERBOSITY=error

if [ -z "${FINDINGS_FOLDER:-}" ]; then
  FINDINGS_FOLDER=$(mktemp -d)
  trap 'rm -rf "$FINDINGS_FOLDER"' EXIT
fi

packages() {
  venv=$FINDINGS_FOLDER/$(printf '%s\n' "$@" | sort | sha256sum | cut -c1-12)
  [ -e "$venv/ready" ] && return
  rm -rf "$venv"
  if ! { "${PYTHON:-python3}" -m venv "$venv" &&
    "$venv/bin/pip" install --quiet --only-binary :all: "$@" 2>"$venv/pip" && touch "$venv/ready"; }; then
    grep ERROR "$venv/pip" | head -3
    exit 77
  fi
}

# Both engines on one graph, for the scripts about operators. None stands for a refusal.
ENGINES='
import numpy as np, onnx, onnxruntime, openvino
from onnx import TensorProto, helper, numpy_helper

def graph(nodes, inputs, outputs, constants, opset=21):
    named = lambda rows: [helper.make_tensor_value_info(*row) for row in rows]
    held = [value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(value, name)
            for name, value in constants.items()]
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_graph(nodes, "g", named(inputs), named(outputs), held)
    return helper.make_model(made, opset_imports=domains, ir_version=10).SerializeToString()

def ort(model, feeds, options=None):
    options = options or onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)

def ov(model, feeds):
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    answer = compiled(feeds)
    return [answer[port] for port in compiled.outputs]

def off(got, right):
    return float(np.abs(np.asarray(got, np.float64) - np.asarray(right, np.float64)).max())
'

python() {
  { printf '%s\n' "$ENGINES_WANTED"; cat; } | "$venv/bin/python" -W ignore -
}
ENGINES_WANTED=
engines() {
  packages onnxruntime==1.31.1 openvino==2026.4.1 onnx==1.23.2 numpy==2.4.6 "$@"
  ENGINES_WANTED=$ENGINES
}
