"""Products with weights of eight bits: u8 for each output channel, made wide as they are read.

OpenVINO multiplies them by activations that it quantises as they come, `GROUP_SIZE` numbers at a
time, and takes a zero point and a scale per output channel (`Convert`, `Subtract`, `Multiply`) into
the product. Seen on 2026.4: it does so from `MIN_DEPTH` rows of weights on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino
from openvino import Type, opset13

from ge_backend.engines.ov.model import shared
from ge_backend.engines.ov.nodes import operators_of
from ge_backend.errors import Unsupported
from ge_backend.tensors import Array, float32_to_bf16

__all__ = ["COMPILED_WITH", "Compressed", "compress", "halve", "quantised"]

# An encoder took 10 % less CPU time than with 32, at a cosine of 0.9981, not 0.9987; with 128
# another 4 % less, at 0.997 (all-MiniLM-L6-v2, 512 tokens, AVX512-VNNI).
GROUP_SIZE = 64
# What a model with such weights is compiled with, beside what all models are.
COMPILED_WITH: Mapping[str, str] = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": str(GROUP_SIZE)}
# Of fewer rows OpenVINO makes weights wide once and for all.
MIN_DEPTH = 32
# Weights of fewer numbers take no time.
MIN_NUMBERS = 1 << 12
LEVELS = 255
FLOATS = ("f32", "f16", "bf16")
MATRIX = 2
# Marks what makes BF16 wide, so that it is not done once and for all.
# Source: openvino/core/rt_info/decompression.hpp, `Decompression`.
AS_IT_IS = "decompression_0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """What became of a model's weights.

    Attributes:
        matrices: how many were compressed; one that several products share counts once.
        numbers: that they have together.
    """

    matrices: int
    numbers: int


def compress(model: Any) -> Compressed:
    """Replace, in place, weights that products multiply by, in branches and loops, too.

    Left as they are: what is no matrix of real numbers that a product's second input is; small
    ones; and tables that are looked up by rows, unless a product reads the same constant along its
    rows, as scores over a vocabulary do: both then read the compressed one. The model no longer
    holds the former weights.

    Raises:
        Unsupported: weights are not finite.
    """
    found = _products(model)
    numbers = 0
    for (_, by_row), products in found.items():
        numbers += _replace(products, channels=0 if by_row else 1)
    return Compressed(matrices=len(found), numbers=numbers)


def halve(model: Any) -> None:
    """Replace, in place, FP32 weights that products multiply by with BF16 ones.

    A model that computes in BF16 rounds them so, but each body of it by itself; see `by_shape`.
    """
    for products in _products(model).values():
        weights = _weights(products[0])
        if weights.get_element_type() != Type.f32:
            continue
        # Not by `opset13.constant`, which cuts off what BF16 has no place for.
        bits = float32_to_bf16(np.asarray(weights.get_data())).view(np.int16)
        held = openvino.op.Constant(shared(bits, Type.bf16), shared_memory=False)
        wide = opset13.convert(held, Type.f32)
        wide.get_rt_info()[AS_IT_IS] = ""
        for product in products:
            product.input(1).replace_source_output(wide.output(0))


def quantised(weights: Array, channels: int) -> tuple[Array, Array, Array]:
    """Return UINT8 weights, and UINT8 zero points and FP32 scales for each channel.

    A weight is `(number - zero) * scale`, off by no more than half of its channel's scale, which is
    a 255th of what the channel's weights span together with 0. A channel of one value is exact.

    Args:
        weights: FP32 `[M, N]`, finite.
        channels: the axis along which they lie, 0 or 1; zero points and scales are
            `[M, 1]` or `[1, N]`.
    """
    along = 1 - channels
    low = np.minimum(weights.min(axis=along, keepdims=True), 0).astype(np.float64)
    high = np.maximum(weights.max(axis=along, keepdims=True), 0).astype(np.float64)
    spans = (high - low) / LEVELS
    # Smaller ones are no numbers of FP32: all of such a channel becomes 0.
    scales = np.where(spans < np.finfo(np.float32).tiny, 1, spans).astype(np.float32)
    zeros = np.rint(-low / scales).astype(np.float32)
    numbers = weights / scales
    numbers += zeros
    np.clip(np.rint(numbers, out=numbers), 0, LEVELS, out=numbers)
    return numbers.astype(np.uint8), zeros.astype(np.uint8), scales


def _products(model: Any) -> dict[tuple[str, bool], list[Any]]:
    """Return products by the constant that they multiply by, and whether by its rows.

    One that products read both ways has two kinds of channels.
    """
    found: dict[tuple[str, bool], list[Any]] = {}
    for product in list(operators_of(model)):
        if product.get_type_name() == "MatMul" and (weights := _weights(product)) is not None:
            key = weights.get_name(), bool(product.get_attributes()["transpose_b"])
            found.setdefault(key, []).append(product)
    return found


def _weights(product: Any) -> Any:
    """Return the constant that a product multiplies by; None where it is left as it is."""
    constant = product.input_value(1).get_node()
    if constant.get_type_name() == "Convert":
        constant = constant.input_value(0).get_node()
    if constant.get_type_name() != "Constant":
        return None
    shape, kind = constant.get_output_shape(0), constant.get_element_type().get_type_name()
    if len(shape) != MATRIX or kind not in FLOATS:
        return None
    depth = shape[1 if product.get_attributes()["transpose_b"] else 0]
    large = shape[0] * shape[1] >= MIN_NUMBERS and depth >= MIN_DEPTH
    return constant if large else None


def _replace(products: list[Any], channels: int) -> int:
    """Have products read their constant compressed; return how many numbers it has."""
    constant = _weights(products[0])
    given = np.asarray(constant.get_data(dtype=np.float32))
    if not np.isfinite(given).all():
        raise Unsupported(
            f"weights {constant.get_friendly_name()!r} are not finite, and have no eight bits; set "
            "the parameter 'precision' to another one"
        )
    numbers, zeros, scales = quantised(given, channels)
    wide = opset13.multiply(
        opset13.subtract(_widened(numbers), _widened(zeros)), opset13.constant(scales)
    )
    kind = products[0].input_value(1).get_element_type()
    if kind != Type.f32:
        wide = opset13.convert(wide, kind)
    for product in products:
        product.input(1).replace_source_output(wide.output(0))
    if channels == 0:
        for reader in list(_looked_up(constant)):
            reader.replace_source_output(wide.output(0))
    return int(numbers.size)


def _widened(numbers: Array) -> Any:
    """Return them in FP32, as the pattern begins; a mark of its own would have it computed once."""
    return opset13.convert(opset13.constant(numbers), Type.f32)


def _looked_up(constant: Any) -> Iterator[Any]:
    """Give the inputs of operators that look rows of a constant up."""
    for reader in constant.output(0).get_target_inputs():
        operator = reader.get_node()
        if operator.get_type_name() == "Convert":
            yield from _looked_up(operator)
        elif operator.get_type_name() == "Gather" and reader.get_index() == 0:
            axis = operator.input_value(2).get_node()
            if axis.get_type_name() == "Constant" and int(axis.get_data()) == 0:
                yield reader
