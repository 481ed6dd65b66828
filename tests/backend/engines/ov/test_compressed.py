"""Weights of eight bits: near what they were, once in memory, and multiplied by as before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

openvino = pytest.importorskip("openvino")

from openvino import Type, opset13  # noqa: E402

from ge_backend.engines.ov.compressed import (  # noqa: E402
    COMPILED_WITH,
    Compressed,
    compress,
    halve,
    quantised,
)
from ge_backend.engines.ov.model import compile_for_cpu, has_bf16  # noqa: E402
from ge_backend.engines.ov.nodes import operators_of  # noqa: E402
from ge_backend.errors import Unsupported  # noqa: E402

MATRICES = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, max_side=9),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def weights(*shape, seed=0):
    """Return FP32 weights, as large as those of a layer."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) / 8


def constant(array, kind=Type.f32):
    """Return a constant that is FP32 to its readers, and is held in a type."""
    held = opset13.constant(array, kind)
    return held if kind == Type.f32 else opset13.convert(held, Type.f32)


def model_of(make, width=64):
    """Return a model of what `make` makes of FP32 rows `[B, width]`."""
    rows = opset13.parameter([-1, width], Type.f32, name="rows")
    return openvino.Model([opset13.result(make(rows))], [rows], "made")


def answer(model, rows, kind="f32", **options):
    """Return what a model says of rows, computed in a kind of real numbers."""
    compiled = compile_for_cpu(model, precision=kind, threads=1, **options)
    return np.array(compiled([rows])[0])


def kinds_of(model):
    """Return the types of a model's matrices."""
    return sorted(
        operator.get_element_type().get_type_name()
        for operator in operators_of(model)
        if operator.get_type_name() == "Constant"
        and len(operator.get_output_shape(0)) == 2
        and min(operator.get_output_shape(0)) > 1
    )


@given(given_weights=MATRICES, channels=st.integers(0, 1))
def test_a_weight_is_off_by_no_more_than_half_a_step(given_weights, channels):
    """Whatever its channel holds: zeros, one value, the largest numbers there are, hardly any."""
    numbers, zeros, scales = quantised(given_weights, channels)
    found = (numbers.astype(np.float64) - zeros) * scales
    assert numbers.dtype == zeros.dtype == np.uint8
    assert (
        zeros.shape
        == scales.shape
        == tuple(size if axis == channels else 1 for axis, size in enumerate(given_weights.shape))
    )
    spans = np.ptp(np.concatenate([given_weights, given_weights * 0], 1 - channels), 1 - channels)
    assert np.isfinite(scales).all()
    few = 2**-22  # of rounding in FP32
    bound = np.expand_dims(spans.astype(np.float64), 1 - channels) / 255 * (0.5 + 256 * few)
    assert (np.abs(found - given_weights) <= bound + 1e-35).all()


@given(value=st.floats(width=32, allow_nan=False, min_value=-(2.0**100), max_value=2.0**100))
def test_a_channel_of_one_value_is_exact(value):
    """It is one end of what its numbers reach, so that no rounding is left; zero is zero."""
    numbers, zeros, scales = quantised(np.full((2, 3), value, np.float32), 0)
    found = (numbers.astype(np.float32) - zeros) * scales
    assert found == pytest.approx(np.full((2, 3), np.float32(value)), rel=1e-6, abs=1e-35)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", [Type.f32, Type.f16, Type.bf16])
def test_a_product_says_nearly_the_same(transposed, kind):
    """Whichever way its weights lie, and whatever type they were held in."""
    shape = (96, 64) if transposed else (64, 96)
    model = model_of(
        lambda rows: opset13.matmul(rows, constant(weights(*shape), kind), False, transposed)
    )
    rows = weights(5, 64, seed=1)
    expected = answer(model, rows)
    assert compress(model) == Compressed(matrices=1, numbers=64 * 96)
    assert kinds_of(model) == ["u8"]
    found = answer(model, rows, **COMPILED_WITH)
    cosines = (expected * found).sum(1) / np.linalg.norm(expected, axis=1)
    assert (cosines / np.linalg.norm(found, axis=1)).min() > 0.999
    assert not np.array_equal(found, expected)


def test_a_product_of_half_numbers_keeps_their_type():
    """A file in FP16 multiplies so throughout."""
    rows = opset13.parameter([-1, 64], Type.f16)
    product = opset13.matmul(rows, opset13.constant(weights(96, 64), Type.f16), False, True)
    model = openvino.Model([opset13.result(product)], [rows], "half")
    given_rows = weights(5, 64, seed=1).astype(np.float16)
    expected = answer(model, given_rows).astype(np.float32)
    assert compress(model).matrices == 1
    found = answer(model, given_rows, **COMPILED_WITH).astype(np.float32)
    assert kinds_of(model) == ["u8"]
    np.testing.assert_allclose(found, expected, atol=0.03 * np.abs(expected).max())


@pytest.mark.skipif(not has_bf16(), reason="nothing is computed in BF16 here")
def test_bf16_is_made_of_weights_once():
    """As an engine that computes in BF16 rounds them: no answer changes."""
    model = model_of(
        lambda rows: opset13.matmul(rows, opset13.constant(weights(96, 64)), False, True)
    )
    rows = weights(5, 64, seed=1)
    before, exact = (answer(model, rows, kind=kind) for kind in ("bf16", "f32"))
    halve(model)
    assert kinds_of(model) == ["bf16"]
    np.testing.assert_array_equal(answer(model, rows, kind="bf16"), before)
    assert np.abs(answer(model, rows) - exact).max() < 0.02 * np.abs(exact).max()


def test_weights_of_two_products_are_compressed_once():
    """Also where one of them goes by another operator first."""
    shared = opset13.constant(weights(64, 64))
    model = model_of(
        lambda rows: opset13.matmul(
            opset13.tanh(opset13.matmul(rows, shared, False, True)), shared, False, True
        )
    )
    assert compress(model).matrices == 1
    assert kinds_of(model) == ["u8"]


def test_a_table_that_scores_are_computed_with_is_looked_up_compressed():
    """So that an embedding that is the last layer, too, is held once."""
    table = opset13.constant(weights(300, 64))
    ids = opset13.parameter([-1], Type.i64, name="ids")
    rows = opset13.gather(table, ids, opset13.constant(np.int64(0)))
    scores = opset13.matmul(rows, table, False, True)
    model = openvino.Model([opset13.result(scores)], [ids], "tied")
    given_ids = np.array([3, 299, 0])
    expected = answer(model, given_ids)
    assert compress(model).matrices == 1
    assert kinds_of(model) == ["u8"]
    found = answer(model, given_ids, **COMPILED_WITH)
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_what_is_left_as_it_is():
    """Weights of few numbers or of few rows, and a table that is only looked up."""
    table = opset13.constant(weights(300, 64))

    def layers(rows):
        looked_up = opset13.gather(table, opset13.constant([2]), opset13.constant(np.int64(0)))
        narrow = opset13.matmul(rows, opset13.constant(weights(64, 16)), False, False)
        wide = opset13.matmul(narrow, opset13.constant(weights(16, 512)), False, False)
        return opset13.concat([wide, opset13.multiply(rows, looked_up)], 1)

    model = model_of(layers)
    assert compress(model) == Compressed(matrices=0, numbers=0)
    assert kinds_of(model) == ["f32"] * 3


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_weights_that_are_not_finite_are_refused(value):
    """They have no eight bits, and would make a whole channel nothing."""
    spoilt = weights(64, 64)
    spoilt[3, 5] = value
    model = model_of(lambda rows: opset13.matmul(rows, opset13.constant(spoilt), False, True))
    with pytest.raises(Unsupported, match="not finite"):
        compress(model)


def test_products_in_branches_are_compressed():
    """A model's own graph is not all of it."""
    condition = opset13.parameter([], Type.boolean, name="condition")
    rows = opset13.parameter([-1, 64], Type.f32, name="rows")
    bodies, places = [], []
    for seed in (0, 1):
        given_rows = opset13.parameter([-1, 64], Type.f32)
        made = opset13.matmul(given_rows, opset13.constant(weights(64, 64, seed=seed)), False, True)
        bodies.append(openvino.Model([opset13.result(made)], [given_rows], f"branch{seed}"))
        places.append(given_rows)
    chosen = openvino.opset13.if_op(condition)
    chosen.set_then_body(bodies[0])
    chosen.set_else_body(bodies[1])
    chosen.set_input(rows.output(0), places[0], places[1])
    out = chosen.set_output(bodies[0].results[0], bodies[1].results[0])
    model = openvino.Model([opset13.result(out)], [condition, rows], "branches")
    assert compress(model).matrices == 2
