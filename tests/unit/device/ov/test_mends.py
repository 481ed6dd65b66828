"""Operators that OpenVINO computes otherwise than ONNX Runtime: its answers are the same here."""

import numpy as np
import pytest

openvino = pytest.importorskip("openvino")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from builders import engine_faults as faults  # noqa: E402
from ge_backend.device.base import GraphSource  # noqa: E402
from ge_backend.device.kinds.cpu import CpuDevice  # noqa: E402
from ge_backend.device.ov.model import read_model  # noqa: E402

LENGTHS = np.array([7, 3, 1], np.int32)


def answers(folder, content, inputs, *, bucket=False, **source):
    """Return what OpenVINO answers, and what ONNX Runtime does."""
    path = folder / "model.onnx"
    path.write_bytes(content)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    expected = session.run(None, inputs)
    graph = CpuDevice().load(GraphSource.of(path, engine="openvino", threads=1, **source))
    try:
        if bucket:
            graph.compile([{name: array.shape for name, array in inputs.items()}])
            graph.prepare(inputs)
            assert len(graph._compiled) == 1
        found = graph.run(inputs, {}, exclusive=False)
    finally:
        graph.close()
    return list(found.values()), expected


def same(found, expected, atol=1e-5):
    return all(
        one.shape == other.shape and np.allclose(one, other, atol=atol)
        for one, other in zip(found, expected, strict=True)
    )


def rows(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


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


@pytest.mark.parametrize(
    ("shape", "times"),
    [
        ((3,), [4]),
        ((2, 3), [1, 3]),
        ((2, 3), [0, 2]),
        ((2, 3, 4), [1, 2, 3]),
        ((2, 3, 4, 5), [7, 6, 4, 2]),
        ((1, 3, 4, 2, 2), [2, 1, 2, 1, 3]),
    ],
)
def test_repetitions_that_only_a_run_tells(tmp_path, shape, times):
    """In every rank; OpenVINO's own Tile fills one of four axes wrongly."""
    inputs = {"x": rows(*shape), "times": np.array(times)}
    assert same(*answers(tmp_path, faults.repeated(len(shape)), inputs))


@pytest.mark.parametrize(
    "zero", [np.uint8(0), np.uint16(0), np.int16(-32768), np.uint16(32768), np.int16(0)]
)
def test_what_a_quantised_type_cannot_hold_is_cut_off(tmp_path, zero):
    """Also with 16 bits, where that is all that is left of a ReLU."""
    content = faults.quantised(zero, 0.05 if zero.itemsize == 1 else 2e-4)
    assert same(*answers(tmp_path, content, {"x": rows(3, 8) * 3}), atol=2e-3)


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "size"), [(3, 4, 1, 12), (2, 3, 1, 4), (3, 2, 0, 6), (2, 4, 0, 5)]
)
def test_sizes_that_pools_round_up(tmp_path, kernel, stride, pad, size):
    """No window begins behind the end, where there would be nothing but the least number."""
    content = faults.pooled(
        kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, ceil_mode=1
    )
    assert same(*answers(tmp_path, content, {"x": rows(2, 2, size, size)}))


@pytest.mark.parametrize("bucket", [False, True])
def test_bf16_tells_positions_beyond_256_apart(tmp_path, bucket):
    """Angles are computed in FP32, as in torch: what is rotated by them has the same direction."""
    inputs = {"positions": np.arange(1024)[None], "x": rows(1, 1024, 64)}
    (found,), (expected,) = answers(
        tmp_path, faults.rotary(), inputs, bucket=bucket, precision="bf16"
    )
    lengths = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
    assert ((found * expected).sum(-1) / lengths).min() > 0.9995


def test_rows_of_unequal_positions_in_bf16(tmp_path):
    """Each by its own."""
    positions = np.array([[3, 900, 4], [700, 1, 257]])
    inputs = {"positions": positions, "x": rows(2, 3, 64)}
    found, expected = answers(tmp_path, faults.rotary(), inputs, precision="bf16")
    assert same(found, expected, atol=0.05)
