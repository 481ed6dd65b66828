"""What OpenVINO makes of inputs that other engines refuse or compute: each is refused instead."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import openvino

from ge_backend.tensors import Shape

__all__ = ["MAX_EXACT", "index_ranges", "rounded_inputs", "skipped_operator"]

MAX_EXACT = 2**24
WHOLE = ("i32", "i64", "u32")
COMPARISONS = ("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual")
ROUNDING = (
    *COMPARISONS,
    *("Divide", "Mod", "FloorMod", "Power", "MatMul", "Relu"),
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
)
# Those that it does compute: sums over nothing, what is joined with nothing, a shape.
COMPUTED = ("Concat", "If", "Loop", "MatMul", "Pad", "Result", "ShapeOf", "TensorIterator")


def rounded_inputs(model: Any) -> frozenset[int]:
    """Return the places of those inputs that reach an operator which rounds them to FP32.

    That is exact up to 2**24 alone. OpenVINO adds, multiplies and moves whole numbers as they are,
    and compares, divides and reduces them in FP32: `16777217 % 100` is 16 there (seen on 2026.4).
    """
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


def skipped_operator(model: Any, shapes: Sequence[Shape]) -> str:
    """Return the name of one that is skipped at these shapes of the inputs, "" if none is.

    OpenVINO skips operators that read an empty tensor, those among them that have something to
    write: a first token's Gather, a padded convolution, TopK. Their results are whatever the memory
    held, such as another request's (seen on 2026.4).

    Raises:
        RuntimeError: or another error of the engine's: the graph does not take these shapes.
    """
    fixed = model.clone()
    fixed.reshape({at: openvino.PartialShape(list(shape)) for at, shape in enumerate(shapes)})
    for operator in fixed.get_ordered_ops():
        kind = operator.get_type_name()
        if kind in COMPUTED or kind.startswith("Reduce") or not operator.get_input_size():
            continue
        if _is_empty(operator.input_value(0)) and not all(map(_is_empty, operator.outputs())):
            return str(operator.get_friendly_name())
    return ""


def _is_empty(port: Any) -> bool:
    shape = port.get_partial_shape()
    return bool(shape.is_static and math.prod(shape.to_shape()) == 0)


def index_ranges(model: Any) -> dict[int, tuple[int, int]]:
    """Return the least and the largest value that inputs may have, by place, where a table says.

    Such as tokens' ids: of a row that a table does not have OpenVINO gives zeros, where other
    engines fail. Source: its operation set, Gather-8; older ones do not count from the end.
    """
    ranges: dict[int, tuple[int, int]] = {}
    for place, port in enumerate(model.inputs):
        for least, most in _ranges(port):
            known = ranges.get(place, (least, most))
            ranges[place] = max(least, known[0]), min(most, known[1])
    return ranges


def _ranges(port: Any) -> Iterator[tuple[int, int]]:
    """Give the range of each Gather that a tensor is an index of, also in another type."""
    for reader in port.get_target_inputs():
        operator = reader.get_node()
        if operator.get_type_name() == "Convert":
            yield from _ranges(operator.output(0))
        elif operator.get_type_name() == "Gather" and reader.get_index() == 1:
            table, axis = operator.input_value(0), operator.input_value(2).get_node()
            if table.get_partial_shape().is_static and axis.get_type_name() == "Constant":
                rows = table.get_shape()[int(axis.get_data())]
                counted = operator.get_type_info().version_id == "opset8"
                yield -rows if counted else 0, rows - 1
