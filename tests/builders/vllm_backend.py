"""A model as Triton's vLLM backend serves it, by a stand-in: its tensors, its answers, its errors.

Source: triton-inference-server/vllm_backend@8de0c14, `src/model.py`, `src/utils/request.py` and
`samples/model_repository`.
"""

import json
from pathlib import Path

__all__ = ["write_vllm_model"]

# The stand-in runs in the Python backend, as the vLLM backend itself does.
CONFIG = """backend: "{backend}"
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
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
