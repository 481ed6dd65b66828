"""What OpenVINO leaves undone where an input has no elements.

It skips operators that read an empty tensor, those among them that have something to write: a first
token's Gather, a padded convolution, TopK. Their results are whatever the memory held, such as
another request's (seen on 2026.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import openvino

from ge_backend.tensors import Shape

__all__ = ["skipped_operator"]

# Those that it does compute: sums over nothing, what is joined with nothing, a shape.
COMPUTED = ("Concat", "If", "Loop", "MatMul", "Pad", "Result", "ShapeOf", "TensorIterator")


def skipped_operator(model: Any, shapes: Sequence[Shape]) -> str:
    """Return the name of one that is skipped at these shapes of the inputs, "" if none is.

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
