"""One forward pass of the encoder: the same code for the rivals, the ceiling and the truth.

Imports only the engine that it is asked for, and nothing of the backend, so that a copy of this
file beside a `model.py` works in any Python.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ENGINES", "Forward", "Ids", "Rows", "load_forward", "pad"]

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]
# INT64 [rows, length] ids and mask -> FP32 [rows, 384].
Forward = Callable[[Ids, Ids], Rows]

# engine -> the file it runs
ENGINES = {
    "onnx": "model.onnx",
    "onnx-int8": "model.int8.onnx",
    "openvino": "model.onnx",
    "openvino-bf16": "model.onnx",
    "torch": "model.pt2",
    "torch-bf16": "model.pt2",
}


def load_forward(engine: str, path: Path, threads: int, device: str = "cpu") -> Forward:
    """Return the forward pass of the encoder in `path`, with so many CPU threads per run.

    Another device than the CPU is torch's: `cuda:0`.
    """
    if engine.startswith("onnx"):
        return _load_onnx(path, threads)
    if engine.startswith("openvino"):
        return _load_openvino(path, threads, bf16=engine == "openvino-bf16")
    return _load_torch(path, threads, device, bf16=engine == "torch-bf16")


def pad(rows: list[Ids]) -> tuple[Ids, Ids]:
    """Return ids and mask, each [len(rows), longest], for rows of shape [length]."""
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    mask = np.zeros_like(ids)
    for line, row in enumerate(rows):
        ids[line, : len(row)] = row
        mask[line, : len(row)] = 1
    return ids, mask


def _load_onnx(path: Path, threads: int) -> Forward:
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def forward(ids: Ids, mask: Ids) -> Rows:
        rows: Rows = session.run(None, dict(zip(names, (ids, mask), strict=True)))[0]
        return rows

    return forward


def _load_openvino(path: Path, threads: int, *, bf16: bool) -> Forward:
    import openvino  # noqa: PLC0415

    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32",
        # With it the instances of one thread each would share a core.
        "ENABLE_CPU_PINNING": False,
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", options)
    request = compiled.create_infer_request()

    def forward(ids: Ids, mask: Ids) -> Rows:
        rows: Rows = request.infer([ids, mask])[0]
        return rows.copy()

    return forward


def _load_torch(path: Path, threads: int, device: str, *, bf16: bool) -> Forward:
    import torch  # noqa: PLC0415

    torch.set_num_threads(threads)
    program = torch.export.load(str(path))
    if device != "cpu":
        from torch.export.passes import move_to_device_pass  # noqa: PLC0415 - since torch 2.7

        program = move_to_device_pass(program, device)
    module: Any = program.module()
    if bf16:
        module = module.to(torch.bfloat16)

    def forward(ids: Ids, mask: Ids) -> Rows:
        given = (torch.from_numpy(array).to(device) for array in (ids, mask))
        with torch.inference_mode():
            rows: Rows = module(*given).float().cpu().numpy()
        return rows

    return forward
