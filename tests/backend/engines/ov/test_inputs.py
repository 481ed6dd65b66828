"""Inputs whose indices, sizes or whole numbers OpenVINO would compute something else of."""

import numpy as np
import pytest

openvino = pytest.importorskip("openvino")
from openvino import opset1  # noqa: E402
from openvino import opset13 as ops  # noqa: E402

from ge_backend.engines.ov.inputs import (  # noqa: E402
    MAX_EXACT,
    index_ranges,
    rounded_inputs,
    skipped_operator,
)
from ge_backend.engines.ov.model import compile_for_cpu  # noqa: E402

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


def model_of(make, rank):
    x = ops.parameter([-1] * rank, np.float32, name="x")
    result = make(x)
    result.set_friendly_name("last")
    return openvino.Model([result.output(0)], [x], "m")


def ones(*shape):
    return ops.constant(np.ones(shape, np.float32))


SKIPPED = {
    "gather": (lambda x: ops.gather(x, 0, 1), (2, 0)),
    "slice": (
        lambda x: ops.strided_slice(x, [0, -1], [0, 0], [1, 1], [1, 1], [1, 1], [], [0, 1]),
        (2, 0),
    ),
    "topk": (lambda x: ops.topk(x, 1, 1, "max", "value"), (2, 0)),
    "convolution": (lambda x: ops.convolution(x, ones(1, 1, 3), [1], [2], [2], [1]), (1, 1, 0)),
}
COMPUTED = {
    "echo": (ops.relu, (2, 0)),
    "sum": (lambda x: ops.reduce_sum(x, [1], False), (2, 0)),
    "product": (lambda x: ops.matmul(x, ops.transpose(x, [1, 0]), False, False), (2, 0)),
    "joined": (lambda x: ops.concat([x, ones(2, 3)], 1), (2, 0)),
    "shape": (lambda x: ops.gather(ops.shape_of(x), 0, 0), (2, 0)),
    "embedding": (lambda x: ops.gather(ones(5, 3), ops.convert(x, "i64"), 0), (2, 0)),
}


@pytest.mark.parametrize(("make", "shape"), SKIPPED.values(), ids=SKIPPED)
def test_what_reads_an_empty_tensor_is_named(make, shape):
    """If it has something to write, and only then."""
    model = model_of(make, len(shape))
    assert skipped_operator(model, [shape]) == "last"
    assert skipped_operator(model, [tuple(size or 8 for size in shape)]) == ""


@pytest.mark.parametrize(("make", "shape"), COMPUTED.values(), ids=COMPUTED)
def test_what_is_computed_of_an_empty_tensor_is_not(make, shape):
    """As a sum over nothing, or a state that begins without a token."""
    assert skipped_operator(model_of(make, len(shape)), [shape]) == ""


def table(*shape):
    return ops.constant(np.ones(shape, np.float32))


def ranges_of(make, dtype=np.int64):
    given = [ops.parameter([-1, -1], dtype, name=name) for name in ("ids", "kinds")]
    return index_ranges(openvino.Model([make(*given).output(0)], given, "m"))


def test_ids_have_the_rows_of_their_tables():
    """From the end, too, and in another type; the smallest table counts."""
    embedded = ranges_of(
        lambda ids, kinds: ops.concat(
            [
                ops.gather(table(5, 4), ops.convert(ids, "i32"), 0),
                ops.gather(table(3, 4), kinds, 0),
                ops.gather(table(2, 4), kinds, 0),
            ],
            1,
        )
    )
    assert embedded == {0: (-5, 4), 1: (-2, 1)}


def test_an_older_gather_does_not_count_from_the_end():
    """So OpenVINO gives zeros for what is below 0."""
    assert ranges_of(lambda ids, kinds: opset1.gather(table(5, 4), ids, 0)) == {0: (0, 4)}


def test_what_is_no_index_may_have_any_value():
    """As a mask, or a table that a client sends."""
    assert ranges_of(ops.multiply) == {}
    first = ops.constant(np.array([0]))
    assert ranges_of(lambda ids, kinds: ops.gather(ids, first, 0)) == {}
    assert ranges_of(lambda ids, kinds: ops.gather(ids, kinds, 0)) == {}
