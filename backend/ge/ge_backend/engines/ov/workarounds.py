"""Operators that OpenVINO computes otherwise than their file says, written as others.

What is made gives ONNX Runtime's numbers. All of it was seen on OpenVINO 2026.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from openvino import opset13, opset14

from ge_backend.engines.ov.nodes import operators_of, replace, whole
from ge_backend.engines.ov.recurrent import STATES, count_lengths
from ge_backend.errors import Unsupported

__all__ = ["SOFTMAX_OF_AN_AXIS", "apply_workarounds", "flatten_softmax"]

# Finer ones are taken out, and with them what they cut off.
LEVELS_OF_8_BITS = 256
# The first opset whose Softmax is over its axis alone: before, it was over all from there on.
SOFTMAX_OF_AN_AXIS = 13


def apply_workarounds(model: Any) -> None:
    """Replace, in place, those operators of a model that would give other numbers.

    Raises:
        Unsupported: one cannot be replaced.
        RuntimeError: the operators do not fit each other.
    """
    for operator in list(operators_of(model)):
        if operator.get_type_name() in WORKAROUNDS:
            WORKAROUNDS[operator.get_type_name()](operator)
    model.validate_nodes_and_infer_types()


def flatten_softmax(model: Any) -> None:
    """Have each Softmax, in place, be over all axes from its own on, as ONNX had it once.

    OpenVINO takes an old one for a new one, over its axis alone.

    Raises:
        Unsupported: one is of any rank.
    """
    for softmax in list(operators_of(model)):
        if softmax.get_type_name() != "Softmax":
            continue
        given = softmax.input_value(0)
        rank = given.get_partial_shape().rank
        if rank.is_dynamic:
            raise Unsupported(
                f"the Softmax {softmax.get_friendly_name()!r}, of an opset before "
                f"{SOFTMAX_OF_AN_AXIS}, has any number of dimensions; export it for a newer one"
            )
        axis = softmax.get_attributes()["axis"] % rank.get_length()
        if axis + 1 < rank.get_length():
            rows = opset13.reshape(given, [0] * axis + [-1], special_zero=True)
            sizes = opset13.shape_of(given, "i64")
            flat = opset13.softmax(rows, axis)
            replace(softmax, opset13.reshape(flat, sizes, special_zero=False).outputs())


def _product(product: Any) -> None:
    rows, weights = (port.get_partial_shape() for port in product.input_values())
    if rows.rank.is_dynamic or weights.rank.is_dynamic or len(weights) == 1:
        return
    how = product.get_attributes()
    along = len(rows) - (2 if how["transpose_a"] else 1)
    length = weights[len(weights) - (1 if how["transpose_b"] else 2)]
    if rows[along].is_dynamic and length.is_static:
        _check_factors(product, len(rows), along, length.get_length())


def _check_factors(product: Any, rank: int, along: int, length: int) -> None:
    """Have a run fail whose rows do not fit the weights that they are multiplied by.

    Where the file leaves it open how long rows are, OpenVINO does not look: of longer ones it
    leaves the end out, and behind shorter ones it reads whatever lies there. A reshape to the same
    shape does look, and moves nothing.
    """
    shape = [0] * rank  # as it is
    shape[along] = length
    checked = opset13.reshape(product.input_value(0), shape, special_zero=True)
    product.input(0).replace_source_output(checked.output(0))


def _tile(tile: Any) -> None:
    """Broadcast instead: repeated as often as a tensor says, some ranks are filled wrongly."""
    given, times = tile.input_values()
    if times.get_node().get_type_name() == "Constant" or given.get_partial_shape().rank.is_dynamic:
        return
    rank = len(given.get_partial_shape())
    times, sizes = opset13.convert(times, "i64"), opset13.shape_of(given, "i64")
    pairs = opset13.concat([opset13.unsqueeze(one, whole(1)) for one in (times, sizes)], 1)
    apart = opset13.unsqueeze(given, whole(list(range(0, 2 * rank, 2))))
    wide = opset13.broadcast(apart, opset13.reshape(pairs, whole([-1]), special_zero=False))
    joined = opset13.reshape(wide, opset13.multiply(times, sizes), special_zero=False)
    replace(tile, [joined.output(0)])


def _quantised(quantised: Any) -> None:
    """Cut numbers at the ends of a type of 16 bits before: a ReLU may be no more than that."""
    if quantised.get_attributes()["levels"] > LEVELS_OF_8_BITS:
        given, low, high = quantised.input_values()[:3]
        cut = opset13.minimum(opset13.maximum(given, low), high)
        quantised.input(0).replace_source_output(cut.output(0))


def _max_pool(pool: Any) -> None:
    """Round sizes up as torch and ONNX do: no window begins behind the end."""
    how = pool.get_attributes()
    if how["rounding_type"] == "ceil":
        made = opset14.max_pool(
            pool.input_value(0),
            how["strides"],
            how.get("dilations", [1] * len(how["kernel"])),
            how["pads_begin"],
            how["pads_end"],
            how["kernel"],
            "ceil_torch",
            how["auto_pad"],
            how.get("index_element_type", "i64"),
            how.get("axis", 0),
        )
        replace(pool, made.outputs()[: len(pool.outputs())])


def _avg_pool(pool: Any) -> None:
    """Have padding that counts be zeros, not the zero point's distance from them, in 8 bits.

    A maximum of what is quantised and of nothing less changes nothing, and 8 bits end before it.
    """
    given, source = pool.input_value(0), pool.input_value(0).get_node()
    while source.get_type_name() in ("Multiply", "Subtract"):
        source = source.input_value(0).get_node()
    quantised = source.get_type_name() in ("Convert", "FakeQuantize")
    if quantised and not pool.get_attributes()["exclude-pad"]:
        least = opset13.constant(-np.inf, given.element_type)
        pool.input(0).replace_source_output(opset13.maximum(given, least).output(0))


WORKAROUNDS: Mapping[str, Callable[[Any], None]] = {
    "MatMul": _product,
    "Tile": _tile,
    "FakeQuantize": _quantised,
    "AvgPool": _avg_pool,
    "MaxPool": _max_pool,
    **dict.fromkeys(STATES, count_lengths),
}
