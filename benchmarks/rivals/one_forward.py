"""The plain Python model: one forward pass per request, as it came. Copied as `1/model.py`."""

import asyncio  # noqa: F401 - else the stub imports it on the first request, which costs 25-75 ms
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parent))
from forward import ENGINES, load_forward  # type: ignore[import-not-found]


class TritonPythonModel:
    """Runs every request by itself."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine."""
        parameters = json.loads(args["model_config"])["parameters"]
        engine, threads, device = (
            parameters[name]["string_value"] for name in ("engine", "threads", "device")
        )
        path = Path(__file__).parent / ENGINES[engine]
        self.forward = load_forward(engine, path, int(threads), device)
        self.forward(np.full((1, 24), 7), np.ones((1, 24), np.int64))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return one response per request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        ids = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()
        rows = self.forward(ids, np.ones_like(ids))
        return pb_utils.InferenceResponse([pb_utils.Tensor("sentence_embedding", rows)])
