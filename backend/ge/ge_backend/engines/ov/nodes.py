"""Parts of OpenVINO's graphs that several of our files make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from openvino import opset13

__all__ = ["operators_of", "replace", "whole"]


def whole(value: int | list[int]) -> Any:
    """Return a constant of INT64."""
    return opset13.constant(np.array(value, np.int64))


def replace(operator: Any, made: Sequence[Any]) -> None:
    """Have all readers of an operator's outputs read these, which take over their names, too."""
    for old, new in zip(operator.outputs(), made, strict=True):
        new.get_tensor().set_names(old.get_names())
        for reader in old.get_target_inputs():
            reader.replace_source_output(new)


def operators_of(model: Any) -> Iterator[Any]:
    """Give the operators of a model, also in branches and bodies of loops."""
    for operator in model.get_ops():
        yield operator
        if operator.get_type_name() == "If":
            yield from operators_of(operator.get_then_body())
            yield from operators_of(operator.get_else_body())
        elif operator.get_type_name() in ("Loop", "TensorIterator"):
            yield from operators_of(operator.get_function())
