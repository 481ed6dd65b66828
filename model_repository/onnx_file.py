"""ONNX files written node by node: small, without a converter, the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["Values", "build", "save"]

# name -> (element type, axes: sizes, or names of free ones)
Values = Mapping[str, tuple[int, list[str | int]]]


def build(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Values,
    outputs: Values,
    constants: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    """Return one checked model."""
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(name, *value) for name, value in inputs.items()],
        [helper.make_tensor_value_info(name, *value) for name, value in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    # Older ONNX Runtimes refuse newer files, so say the oldest that has these operators.
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    return model


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Values,
    outputs: Values,
    constants: Mapping[str, np.ndarray],
) -> None:
    """Write one checked model, named after its folder."""
    onnx.save(build(path.parent.parent.name, nodes, inputs, outputs, constants), str(path))
