"""What ONNX Runtime computes otherwise than an ONNX file says: refused, or kept from its optimiser.

No other engine here computes it rightly, so that no comparison shows it. Found with ONNX Runtime
1.31 by scripts of `findings/`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from ge_backend.errors import ModelError, Unsupported
from ge_backend.model.files.onnx_file import OnnxNode, onnx_nodes, onnx_operators, onnx_weights

__all__ = ["check_computed_as_written", "wrong_optimizers"]

OPERATOR = "MatMulNBits"
# By place, its inputs that are looked at.
ZERO_POINTS, GROUPS = 3, 4
BIAS = 2  # of a Gemm
# Those widths of its weights whose groups' order is right, where zero points are no bytes.
FOUR_BITS = 4
# TensorProto.DataType: FLOAT, FLOAT16, DOUBLE, BFLOAT16.
REAL = frozenset({1, 10, 11, 16})
# Quantised, it divides by its whole window where both are set and the last one goes past the end.
POOL, QUANTISED_POOL = "AveragePool", "QLinearAveragePool"
PAST_THE_END = ("ceil_mode", "count_include_pad")


def check_computed_as_written(path: Path) -> None:
    """See that the CPU's provider computes what an `.onnx` file says, as far as that is known.

    Weights with the groups of a GPTQ checkpoint in an order of their own (`g_idx`) are made numbers
    with other zero points than the file's, where these are packed in bytes, and at two bits always.
    Zero points that are no weight of the file count as packed: they may be.

    Raises:
        Unsupported: it does not; says how to export it.
        ModelError: the file is no ONNX model.
    """
    if not onnx_operators(path) & {OPERATOR, QUANTISED_POOL}:
        return
    nodes = onnx_nodes(path)
    for node in nodes:
        if _is_miscounted(node, QUANTISED_POOL):
            raise Unsupported(
                f"{path}: ONNX Runtime gives wrong numbers for the {QUANTISED_POOL} {node.name!r} "
                f"with {' and '.join(PAST_THE_END)}; quantise with quant_format=QuantFormat.QDQ"
            )
    ordered = [node for node in nodes if node.operator == OPERATOR and _input(node, GROUPS)]
    types = onnx_weights(path) if ordered else {}
    for node in ordered:
        zeros = _input(node, ZERO_POINTS)
        wide = node.attributes.get("bits", FOUR_BITS) == FOUR_BITS
        if not wide or (zeros and types.get(zeros) not in REAL):
            what = "zero points that are packed in bytes" if wide else "weights of two bits"
            way = "with zero points of the scales' type, or " if wide else ""
            raise Unsupported(
                f"{path}: ONNX Runtime gives wrong numbers for the {OPERATOR} {node.name!r}, which "
                f"has g_idx (an order of groups) beside {what}; export it {way}with its columns in "
                "the order of their groups, without g_idx (GPTQ: desc_act=False)"
            )


def wrong_optimizers(path: Path) -> list[str]:
    """Return the steps of its optimiser, as it calls them, that would make other numbers of a file.

    Of a file that is none nothing is said: the engine says it better.
    """
    wrong = ["DivMulFusion"]  # takes quotients of whole numbers for those of reals
    with contextlib.suppress(ModelError):
        operators = onnx_operators(path)
        if operators >= {"Pad", "MaxPool"}:
            wrong.append("Pad_Fusion")  # zeros around a picture would count as nothing
        if "DequantizeLinear" in operators and operators & {POOL, "Gemm"}:
            nodes = onnx_nodes(path)
            if _shares_a_bias(nodes) or any(_is_miscounted(node, POOL) for node in nodes):
                wrong.append("QDQSelectorActionTransformer")
    return wrong


def _shares_a_bias(nodes: Sequence[OnnxNode]) -> bool:
    """Whether two products have one bias: of which the second's steps would be taken for its."""
    biases = [_input(node, BIAS) for node in nodes if node.operator == "Gemm"]
    return any(biases.count(bias) > 1 for bias in set(biases) - {""})


def _is_miscounted(node: OnnxNode, operator: str) -> bool:
    return node.operator == operator and all(node.attributes.get(key, 0) for key in PAST_THE_END)


def _input(node: OnnxNode, place: int) -> str:
    return node.inputs[place] if len(node.inputs) > place else ""
