"""Which inputs of whole numbers are computed in FP32, which is exact up to 2**24 alone.

OpenVINO adds, multiplies and moves whole numbers as they are, and compares, divides and reduces
them in FP32: `16777217 % 100` is 16 there (seen on 2026.4).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["MAX_EXACT", "rounded_inputs"]

MAX_EXACT = 2**24
WHOLE = ("i32", "i64", "u32")
COMPARISONS = ("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual")
ROUNDING = (
    *COMPARISONS,
    *("Divide", "Mod", "FloorMod", "Power", "MatMul", "Relu"),
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
)


def rounded_inputs(model: Any) -> frozenset[int]:
    """Return the places of those inputs that reach an operator which rounds them to FP32."""
    return frozenset(place for place, port in enumerate(model.inputs) if any(_rounding(port)))


def _rounding(port: Any) -> Iterator[Any]:
    """Give the operators that round the numbers of an input, also behind such as keep them."""
    seen: set[tuple[str, int]] = set()
    waiting = [port]
    while waiting:
        port = waiting.pop()
        key = port.get_node().get_friendly_name(), port.get_index()
        if key in seen or port.get_element_type().get_type_name() not in WHOLE:
            continue
        seen.add(key)
        for reader in port.get_target_inputs():
            operator = reader.get_node()
            if operator.get_type_name() in ROUNDING and not _is_plain(operator, reader):
                yield operator
            elif not _is_looked_up(operator, reader):
                waiting += operator.outputs()


def _is_plain(operator: Any, reader: Any) -> bool:
    """Whether an operator compares with numbers that FP32 has, and to which no other is rounded."""
    if operator.get_type_name() not in COMPARISONS:
        return False
    other = operator.input_value(1 - reader.get_index()).get_node()
    if other.get_type_name() != "Constant":
        return False
    return bool((np.abs(other.get_data(dtype=np.float64)) < MAX_EXACT).all())


def _is_looked_up(operator: Any, reader: Any) -> bool:
    """Whether an operator's outputs are not made of a tensor's numbers: its shape, or a table's."""
    kind = operator.get_type_name()
    return bool(kind == "ShapeOf" or (kind.startswith("Gather") and reader.get_index() > 0))
