"""One step of a recurrent network as an ONNX file: what the sequence benchmark serves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["FEATURES", "write_step"]

FEATURES = 64


def write_step(path: Path, hidden: int) -> None:
    """Write a GRU step: FP32 [batch, 64] x and [batch, hidden] h -> y and h_next [batch, hidden].

    The weights are random with a fixed seed: the time of a step does not depend on them.
    """
    random = np.random.default_rng(6)
    shapes = {"W": (1, 3 * hidden, FEATURES), "R": (1, 3 * hidden, hidden)}
    constants = {
        name: (random.standard_normal(shape) / np.sqrt(hidden)).astype(np.float32)
        for name, shape in shapes.items()
    }
    constants["first"] = np.array([0], np.int64)
    nodes = [
        helper.make_node("Unsqueeze", ["x", "first"], ["series"]),
        helper.make_node("Unsqueeze", ["h", "first"], ["before"]),
        helper.make_node(
            "GRU", ["series", "W", "R", "", "", "before"], ["", "after"], hidden_size=hidden
        ),
        helper.make_node("Squeeze", ["after", "first"], ["h_next"]),
        helper.make_node("Identity", ["h_next"], ["y"]),
    ]
    kinds = {"x": FEATURES, "h": hidden, "y": hidden, "h_next": hidden}
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
        for name, width in kinds.items()
    }
    graph = helper.make_graph(
        nodes,
        "step",
        [values["x"], values["h"]],
        [values["y"], values["h_next"]],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
