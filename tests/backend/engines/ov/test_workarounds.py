"""Operators that OpenVINO computes otherwise than ONNX Runtime: its answers are the same here."""

import numpy as np
import pytest

openvino = pytest.importorskip("openvino")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from builders import engine_faults as faults  # noqa: E402
from builders.engine_faults import answers, rows, same  # noqa: E402
from ge_backend.engines.ov import arithmetic  # noqa: E402


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


@pytest.mark.parametrize("zero", [np.uint8(128), np.int8(-100), np.uint8(0)])
@pytest.mark.parametrize("wide", [False, True])
def test_padding_that_counts_is_zero_in_eight_bits(tmp_path, monkeypatch, zero, wide):
    """Whether products of 8 bits are computed in them, or in FP32."""
    monkeypatch.setattr(arithmetic, "has_int8", lambda: not wide)
    one = faults.helper.make_node
    content = faults.model(
        [
            one("QuantizeLinear", ["x", "s", "z"], ["q"]),
            one("DequantizeLinear", ["q", "s", "z"], ["d"]),
            one("AveragePool", ["d"], ["p"], kernel_shape=[3], pads=[1, 1], count_include_pad=1),
            one("QuantizeLinear", ["p", "s", "z"], ["r"]),
            one("DequantizeLinear", ["r", "s", "z"], ["y"]),
        ],
        [("x", faults.FLOAT, ["batch", 2, "length"])],
        [("y", faults.FLOAT, ["batch", 2, "length"])],
        [("s", np.float32(0.05)), ("z", np.array(zero))],
    )
    assert same(*answers(tmp_path, content, {"x": rows(3, 2, 9)}), atol=0.06)


@pytest.mark.parametrize("opset", [11, 12, 13])
@pytest.mark.parametrize(("shape", "axis"), [((2, 3), 0), ((2, 3, 4), 1), ((2, 3, 4, 5), -2)])
def test_a_softmax_is_over_what_its_opset_says(tmp_path, opset, shape, axis):
    """Over all axes from its own on before opset 13."""
    dims = [f"d{at}" for at in range(len(shape))]
    content = faults.model(
        [
            faults.helper.make_node("Softmax", ["x"], ["s"], axis=axis),
            faults.helper.make_node("Neg", ["s"], ["y"]),
        ],
        [("x", faults.FLOAT, dims)],
        [("y", faults.FLOAT, dims)],
        opset=opset,
    )
    assert same(*answers(tmp_path, content, {"x": rows(*shape)}))


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
