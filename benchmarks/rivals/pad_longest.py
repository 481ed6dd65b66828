"""The model a good engineer writes in an hour: the dynamic batch, padded to its longest row.

Copied as `1/model.py`.
"""

import asyncio  # noqa: F401 - else the stub imports it on the first request, which costs 25-75 ms
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parent))
from forward import ENGINES, load_forward, pad  # type: ignore[import-not-found]


class TritonPythonModel:
    """Runs every batch in one forward pass."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine."""
        parameters = json.loads(args["model_config"])["parameters"]
        engine, threads, device = (
            parameters[name]["string_value"] for name in ("engine", "threads", "device")
        )
        path = Path(__file__).parent / ENGINES[engine]
        self.forward = load_forward(engine, path, int(threads), device)
        self.forward(np.full((8, 24), 7), np.ones((8, 24), np.int64))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return one response per request; every request is one row."""
        tensors = (pb_utils.get_input_tensor_by_name(r, "input_ids") for r in requests)
        rows = self.forward(*pad([tensor.as_numpy()[0] for tensor in tensors]))
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("sentence_embedding", row[None])])
            for row in rows
        ]
