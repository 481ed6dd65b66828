"""What is cut out of a graph as angles, and what is not."""

import numpy as np
import pytest

openvino = pytest.importorskip("openvino")
pytest.importorskip("onnx")

from onnx import helper  # noqa: E402

from builders import engine_faults as faults  # noqa: E402
from ge_backend.engines.ov.angles import cut_angles  # noqa: E402


def read(content):
    return openvino.Core().read_model(content)


def test_angles_become_inputs():
    """Behind the graph's own, one for each sine and cosine; they need its positions only."""
    model = read(faults.rotary())
    names = [port.get_any_name() for port in model.inputs]
    angles = cut_angles(model)
    assert [names[place] for place in angles.inputs] == ["positions"]
    assert len(angles.model.outputs) == 2
    assert len(model.inputs) == len(names) + 2
    kinds = {one.get_type_name() for one in model.get_ops()}
    assert not kinds & {"Sin", "Cos"}


def test_a_layer_whose_activation_is_a_sine_stays():
    """It has weights on the way."""
    weights = np.ones((512, 512), np.float32)
    model = read(
        faults.model(
            [
                helper.make_node("MatMul", ["x", "w"], ["rows"]),
                helper.make_node("Sin", ["rows"], ["y"]),
            ],
            [("x", faults.FLOAT, ["batch", 512])],
            [("y", faults.FLOAT, ["batch", 512])],
            [("w", weights)],
        )
    )
    assert cut_angles(model) is None
    assert len(model.inputs) == 1


def test_angles_that_are_numbers_of_the_file_stay():
    """They need no input."""
    model = read(
        faults.model(
            [
                helper.make_node("Sin", ["table"], ["angles"]),
                helper.make_node("Mul", ["x", "angles"], ["y"]),
            ],
            [("x", faults.FLOAT, ["batch", 4])],
            [("y", faults.FLOAT, ["batch", 4])],
            [("table", np.arange(4, dtype=np.float32))],
        )
    )
    assert cut_angles(model) is None
