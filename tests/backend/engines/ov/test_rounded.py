"""Which inputs of whole numbers reach an operator that OpenVINO computes in FP32."""

import numpy as np
import pytest

openvino = pytest.importorskip("openvino")
from openvino import opset13 as ops  # noqa: E402

from ge_backend.engines.ov.model import compile_for_cpu  # noqa: E402
from ge_backend.engines.ov.rounded import MAX_EXACT, rounded_inputs  # noqa: E402

X = np.array([[MAX_EXACT + 1, 2**30 + 1], [-MAX_EXACT - 3, 2**30 + 7]], np.int32)
NEAR = np.array([[MAX_EXACT, 2**30], [-MAX_EXACT - 4, 2**30 + 9]], np.int32)
SMALL = np.array([[3, 100], [2, 7]], np.int32)
LAST = np.array([1])


def of(dtype, *made):
    """Return a model of what is made of two tensors."""
    given = [ops.parameter([-1, -1], dtype, name=name) for name in ("ids", "others")]
    return openvino.Model([make(*given).output(0) for make in made], given, "m")


def whole(number):
    return ops.constant(np.array([[number]], np.int32))


@pytest.mark.parametrize(
    ("make", "expected", "other"),
    [
        (ops.equal, np.equal, NEAR),
        (ops.greater, np.greater, NEAR),
        (ops.less_equal, np.less_equal, NEAR),
        (ops.floor_mod, np.mod, SMALL),
        (ops.mod, np.fmod, SMALL),
        (lambda x, z: ops.divide(ops.abs(x), z), lambda x, z: abs(x) // z, SMALL),
        (lambda x, z: ops.reduce_sum(ops.add(x, z), LAST), lambda x, z: (x + z).sum(1), SMALL),
        (lambda x, z: ops.reduce_max(ops.add(x, z), LAST), lambda x, z: (x + z).max(1), SMALL),
        (lambda x, z: ops.relu(ops.multiply(x, z)), lambda x, z: np.maximum(x * z, 0), SMALL % 2),
        (ops.add, np.add, SMALL),
        (ops.subtract, np.subtract, SMALL),
        (ops.multiply, np.multiply, SMALL % 2),
        (ops.maximum, np.maximum, NEAR),
        (lambda x, z: ops.select(ops.equal(x, whole(5)), x, z), lambda x, z: z, SMALL),
        (lambda x, z: ops.cum_sum(ops.minimum(x, z), whole(1)), None, SMALL),
    ],
)
def test_an_operator_is_known_by_whether_it_rounds(make, expected, other):
    """Beyond 2**24 OpenVINO's answers are other ones just where an input is said to be rounded."""
    model = of(np.int32, make)
    if expected is None:
        assert not rounded_inputs(model)
        return
    found = compile_for_cpu(model, precision="f32", threads=1)([X, other])[0]
    assert (found == expected(X, other)).all() == (not rounded_inputs(model))


def test_each_input_is_told_apart_behind_what_keeps_its_numbers():
    """In another type, and joined by others; what is only looked up, or counted, is not computed."""
    table = ops.constant(np.arange(8))
    assert rounded_inputs(of(np.int64, lambda x, z: ops.mod(ops.convert(x, "i32"), whole(7)))) == {
        0
    }
    both = of(np.int64, lambda x, z: ops.equal(ops.concat([x, z], 1), ops.concat([z, x], 1)))
    assert rounded_inputs(both) == {0, 1}
    looked_up = of(np.int64, lambda x, z: ops.mod(ops.gather(table, x, 0), ops.constant(3)))
    assert not rounded_inputs(looked_up)
    assert not rounded_inputs(of(np.int64, lambda x, z: ops.reduce_prod(ops.shape_of(x), LAST * 0)))


def test_a_comparison_with_a_small_number_is_exact():
    """As with the token of padding: no other number is rounded to one that FP32 has."""
    for number in (0, 1 - MAX_EXACT, MAX_EXACT - 1):
        assert not rounded_inputs(of(np.int32, lambda x, z, n=number: ops.not_equal(x, whole(n))))
        assert not rounded_inputs(of(np.int32, lambda x, z, n=number: ops.less(whole(n), x)))
    assert rounded_inputs(of(np.int32, lambda x, z: ops.equal(x, whole(MAX_EXACT)))) == {0}


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint8])
def test_numbers_that_fp32_has_are_not_rounded(dtype):
    """Nor are those that are FP32 anyhow."""
    assert not rounded_inputs(of(dtype, ops.equal))
