"""What a good engineer writes for sequences: a dict of states in the stub, one batch per call.

Copied as `1/model.py`.
"""

import asyncio  # noqa: F401 - else the stub imports it on the first request, which costs 25-75 ms
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

START, END = 1, 2


class TritonPythonModel:
    """Stacks the states of the batch's sequences, runs one step, and keeps the new ones."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the step."""
        del args  # the model has no parameters
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = os.cpu_count() or 1
        path = Path(__file__).parent / "model.onnx"
        self.step = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.hidden = self.step.get_inputs()[1].shape[1]
        self.states: dict[Any, Any] = {}

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return one response per request; every request is one step of one sequence."""
        names = [request.correlation_id() for request in requests]
        for name, request in zip(names, requests, strict=True):
            if request.flags() & START:
                self.states[name] = np.zeros(self.hidden, np.float32)
        tensors = (pb_utils.get_input_tensor_by_name(request, "x") for request in requests)
        x = np.concatenate([tensor.as_numpy() for tensor in tensors])
        h = np.stack([self.states[name] for name in names])
        y, following = self.step.run(["y", "h_next"], {"x": x, "h": h})
        for name, request, state in zip(names, requests, following, strict=True):
            if request.flags() & END:
                del self.states[name]
            else:
                self.states[name] = state
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", row[None])]) for row in y]
