"""Recurrent operators that are told how long rows are: OpenVINO answers as ONNX Runtime does."""

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from builders import engine_faults as faults
from builders.engine_faults import answers, rows, same
from ge_backend.engines.ov.model import read_model

LENGTHS = np.array([7, 3, 1], np.int32)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    ("how", "atol"), [({}, 1e-5), ({"bucket": True}, 1e-5), ({"precision": "bf16"}, 0.03)]
)
def test_lengths_of_rows_count(tmp_path, kind, direction, how, atol):
    """In the model for any shape as in a bucket's: no step behind a row's end changes it."""
    inputs = {"x": rows(7, 3, faults.WIDTH), "lengths": LENGTHS}
    content = faults.recurrent(kind, direction)
    assert same(*answers(tmp_path, content, inputs, **how), atol=atol)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("LSTM", {"clip": 0.5}),
        ("LSTM", {"activations": ["Sigmoid", "Relu", "Tanh"]}),
        ("GRU", {"linear_before_reset": 1}),
        ("RNN", {"activations": ["Relu"]}),
    ],
)
def test_lengths_count_beside_what_else_an_operator_is_told(tmp_path, kind, more):
    """Its states at the beginning, its activations and the rest stay."""
    states = {"h": rows(1, 3, faults.SIZE), "c": rows(1, 3, faults.SIZE)}
    inputs = {"x": rows(7, 3, faults.WIDTH), "lengths": LENGTHS, **states}
    if kind != "LSTM":
        del inputs["c"]
    content = faults.recurrent(kind, states=True, **more)
    assert same(*answers(tmp_path, content, inputs))


def test_lengths_count_in_a_file_of_openvinos_own(tmp_path):
    """It is read by the same engine, with the same faults."""
    import openvino

    from ge_backend.device.base import GraphSource
    from ge_backend.engines.kinds.cpu import CpuDevice

    content = faults.recurrent("LSTM", "bidirectional")
    (tmp_path / "source.onnx").write_bytes(content)
    converted = openvino.convert_model(tmp_path / "source.onnx")
    openvino.save_model(converted, tmp_path / "model.xml", compress_to_fp16=False)
    inputs = {"x": rows(7, 3, faults.WIDTH), "lengths": LENGTHS}
    _, expected = answers(tmp_path, content, inputs)
    graph = CpuDevice().load(GraphSource.of(tmp_path / "model.xml", threads=1))
    found = graph.run(inputs, {}, exclusive=False)
    graph.close()
    assert same([found["y"], found["last"]], expected)


def test_without_lengths_the_engines_own_operator_computes(tmp_path):
    """Which is faster than steps of a loop."""
    kinds = {}
    for lengths in ("", "lengths"):
        path = tmp_path / f"m{lengths}.onnx"
        path.write_bytes(faults.recurrent("LSTM", lengths=lengths))
        kinds[lengths] = {one.get_type_name() for one in read_model(path).get_ops()}
    assert "LSTMSequence" in kinds[""]
    assert "TensorIterator" not in kinds[""]
    assert "LSTMSequence" not in kinds["lengths"]
