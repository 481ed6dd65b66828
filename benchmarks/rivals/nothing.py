"""The plain Python model at its least: reads requests, answers zeros. Copied as `1/model.py`."""

import asyncio  # noqa: F401 - as in the other rivals
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

ZEROS = np.zeros((1, 384), np.float32)


class TritonPythonModel:
    """Computes nothing."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return one response per request."""
        return [self._answer(request) for request in requests]

    @staticmethod
    def _answer(request: Any) -> Any:
        pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("sentence_embedding", ZEROS)])
