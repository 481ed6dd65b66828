"""A model as Triton's vLLM backend serves it, by a stand-in: its tensors, its answers, its errors.

Source: triton-inference-server/vllm_backend@8de0c14, `src/model.py`, `src/utils/request.py` and
`samples/model_repository`.
"""

import json
import shutil
from pathlib import Path

__all__ = ["ENVIRONMENT", "write_real_backend", "write_vllm_model"]

# The stand-in runs in the Python backend, as the vLLM backend itself does.
CONFIG = """backend: "{backend}"
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
# As the samples have it, in a Python environment of its own.
ENVIRONMENT = """backend: "vllm"
instance_group [ {{ count: 1 kind: KIND_MODEL }} ]
parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{folder}" }} }}
"""
BEFORE = """import locale, sys

locale.setlocale(locale.LC_ALL, "C.UTF-8")
import vllm.inputs
import vllm.v1.metrics.loggers as loggers

if not hasattr(loggers, "build_1_2_5_buckets"):
    from vllm.v1.metrics.buckets import build_1_2_5_buckets

    loggers.build_1_2_5_buckets = build_1_2_5_buckets
    sys.modules["vllm.inputs.data"] = vllm.inputs
from vllm_backend_model import TritonPythonModel
"""
MODEL = Path(__file__).parents[1] / "fakes" / "vllm_backend_model.py"


def write_vllm_model(repository, name, arguments, *, backend="python"):
    """Write a model's folder as the backend's samples have it; return its version folder."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG.format(backend=backend))
    (version / "model.json").write_text(json.dumps(arguments))
    (version / "model.py").write_bytes(MODEL.read_bytes())
    return version


def write_real_backend(checkout, into):
    """Put the backend's own files into a folder of the server's backends.

    A stub has the locale "C", in which torch's own files cannot be read; two names that the backend
    imports are elsewhere in vLLM 0.32.
    """
    shutil.copytree(checkout / "src", into)
    (into / "model.py").rename(into / "vllm_backend_model.py")
    (into / "model.py").write_text(BEFORE)
