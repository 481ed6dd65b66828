"""Small ONNX models that an NPU is asked about, and why it cannot be."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["IMAGE", "WIDTH", "Skipped", "matrix_product", "photo_means", "token_product"]

WIDTH = 64
IMAGE = (3, 16, 16)


class Skipped(Exception):
    """A question cannot be asked on this machine; the text says why."""


def matrix_product() -> bytes:
    """Return an ONNX model x FP32 [batch, WIDTH] -> y, with weights that are no constant fold."""
    onnx = _onnx()
    weights = np.random.default_rng(1).normal(size=(WIDTH, WIDTH)).astype(np.float32)
    return _model(onnx, "MatMul", ["x", "w"], ["batch", WIDTH], ["batch", WIDTH], {"w": weights})


def token_product() -> bytes:
    """Return the same for x FP32 [batch, tokens, WIDTH]."""
    onnx = _onnx()
    weights = np.random.default_rng(1).normal(size=(WIDTH, WIDTH)).astype(np.float32)
    dims = ["batch", "tokens", WIDTH]
    return _model(onnx, "MatMul", ["x", "w"], dims, dims, {"w": weights})


def photo_means() -> bytes:
    """Return an ONNX model x FP32 [batch, 3, 16, 16] -> y [batch, 3, 1, 1]."""
    onnx = _onnx()
    return _model(
        onnx, "GlobalAveragePool", ["x"], ["batch", *IMAGE], ["batch", IMAGE[0], 1, 1], {}
    )


def _onnx() -> Any:
    try:
        return importlib.import_module("onnx")
    except ImportError as error:
        raise Skipped("models are made with the package onnx, which is not there") from error


def _model(
    onnx: Any,
    kind: str,
    inputs: list[str],
    taken: list[Any],
    given: list[Any],
    weights: Mapping[str, Any],
) -> bytes:
    helper, numbers = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, ["y"])],
        kind,
        [helper.make_tensor_value_info("x", numbers, taken)],
        [helper.make_tensor_value_info("y", numbers, given)],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    return bytes(model.SerializeToString())
