# Sourced by each script: `packages NAME==VERSION ...` installs into a temporary folder, `python` runs
# what it reads in there, behind what `engines`, `quantiser`, `tensorflow`, `paddle` or `sentence_folder` has put before it. A script ends with 0 where the finding holds, 1 where it has changed, 77 where
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

# What `quantize_static` makes of a file by one set of inputs, for its scripts.
QUANTISER='
import pathlib, tempfile
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

class Once(CalibrationDataReader):
    def __init__(self, feeds):
        self.rows = iter([feeds])
    def get_next(self):
        return next(self.rows, None)

def quantise(model, feeds, **how):
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "m.onnx").write_bytes(model)
    quantize_static(folder / "m.onnx", folder / "q.onnx", Once(feeds), **how)
    return (folder / "q.onnx").read_bytes()
'

# What tf2onnx makes of a function, for its scripts: TensorFlow's answer and both engines'.
TENSORFLOW='
import logging, os

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import tensorflow as tf, tf2onnx

logging.disable(logging.CRITICAL)

def three(function, *feeds):
    signature = [tf.TensorSpec([None] * feed.ndim, feed.dtype) for feed in feeds]
    traced = tf.function(function)
    made, _ = tf2onnx.convert.from_function(traced, input_signature=signature, opset=17)
    model, named = made.SerializeToString(), dict(zip([row.name for row in made.graph.input], feeds))
    return traced(*feeds).numpy(), ort(model, named)[0], ov(model, list(feeds))[0]
'

# What paddle2onnx makes of a layer of Paddle's own, for its scripts: Paddle's answer, ONNX Runtime's.
PADDLE='
import contextlib, io, pathlib, tempfile
import numpy as np, onnxruntime, paddle
from paddle import nn

def both(layer, x):
    path = str(pathlib.Path(tempfile.mkdtemp()) / "m")
    spec = [paddle.static.InputSpec([None, *x.shape[1:]], str(x.dtype), name="x")]
    with contextlib.redirect_stdout(io.StringIO()):
        paddle.onnx.export(layer, path, input_spec=spec, opset_version=17)
    session = onnxruntime.InferenceSession(path + ".onnx", providers=["CPUExecutionProvider"])
    return layer(paddle.to_tensor(x)).numpy(), session.run(None, {session.get_inputs()[0].name: x})[0]
'

# `folder`: a tiny encoder of 16 positions for words a to d, as sentence-transformers saves it.
SENTENCES='
import json, pathlib, tempfile
import numpy as np, torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models as words, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

torch.manual_seed(0)
tokens = ["[PAD]", "[UNK]", "a", "b", "c", "d"]
tokenizer = Tokenizer(words.WordLevel({token: i for i, token in enumerate(tokens)}, "[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
made, folder = tempfile.mkdtemp(), pathlib.Path(tempfile.mkdtemp())
PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(made)
BertModel(BertConfig(vocab_size=6, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                     intermediate_size=32, max_position_embeddings=16)).save_pretrained(made)
SentenceTransformer(made).save_pretrained(str(folder))
'

BEFORE=
python() {
  { printf '%s\n' "$BEFORE"; cat; } | "$venv/bin/python" -W ignore -
}
engines() {
  packages onnxruntime==1.31.1 openvino==2026.4.1 onnx==1.23.2 numpy==2.4.6 "$@"
  BEFORE=$ENGINES
}
quantiser() {
  engines
  BEFORE=$ENGINES$QUANTISER
}
tensorflow() {
  packages tensorflow-cpu==2.21.0 tf2onnx==1.17.0 onnxruntime==1.31.1 openvino==2026.4.1
  BEFORE=$ENGINES$TENSORFLOW
}
paddle() {
  packages paddlepaddle==3.3.1 paddle2onnx==2.1.0 onnxruntime==1.31.1 onnx==1.17.0
  BEFORE=$PADDLE
}
sentence_folder() {
  packages sentence-transformers==6.2.0 transformers==5.23.0 torch==2.13.0 numpy==2.4.6
  BEFORE=$SENTENCES
}
