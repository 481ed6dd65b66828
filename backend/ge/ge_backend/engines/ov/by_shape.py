"""One model with a body for each of several shapes: compiled together, they share their weights.

A compiled model packs weights for itself, however many others were made of the same constants; all
graphs within one take them from a store that they share (OpenVINO 2026.4). So bodies stand in the
branches of operators `If`, a tree of them, each behind a reshape to its own sizes. On the way down
only a model's inputs and outputs are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino
from openvino import Type, opset13

from ge_backend.tensors import Shape

__all__ = ["by_shape", "fixed"]


def fixed(model: Any, sizes: Sequence[Shape]) -> Any:
    """Return a copy of a model, on the same constants, whose inputs are of these shapes.

    Raises:
        RuntimeError: or another one of `ENGINE_ERRORS`: it does not take them.
    """
    made = model.clone()
    made.reshape({at: openvino.PartialShape(list(shape)) for at, shape in enumerate(sizes)})
    return made


def by_shape(bodies: Sequence[Any]) -> Any:
    """Return a model that computes what one of these does; they are used up.

    Args:
        bodies: one or more, of the same inputs and outputs, as `fixed` returns them, or of free
            sizes.

    Returns:
        Its first input, an INT32 of no axes, says which by its place; the others are the bodies',
        with free sizes. Outputs are in the bodies' order.
    """
    made = _branch(bodies, 0, len(bodies))
    made.validate_nodes_and_infer_types()
    return made


def _choice(bodies: Sequence[Any], first: int, end: int) -> tuple[Any, list[Any], list[Any]]:
    """Return parameters and outputs that compute one of the bodies from `first` to before `end`."""
    which = opset13.parameter([], Type.i32)
    if end - first == 1:
        return which, *_freed(bodies[first])
    middle = (first + end) // 2
    below = opset13.less(which, opset13.constant(np.int32(middle)))
    operator = opset13.if_op(below.output(0))
    branches = [_branch(bodies, first, middle), _branch(bodies, middle, end)]
    empty = [_stand_in(branch) for branch in branches]
    _set_branches(operator, empty)
    firsts, seconds = (stand_in.get_parameters() for stand_in in empty)
    given = [
        opset13.parameter(inner.get_partial_shape(), inner.get_element_type())
        for inner in firsts[1:]
    ]
    for outer, one, other in zip((which, *given), firsts, seconds, strict=True):
        operator.set_input(outer.output(0), one, other)
    pairs = zip(empty[0].get_results(), empty[1].get_results(), strict=True)
    outputs = [operator.set_output(one, other) for one, other in pairs]
    _set_branches(operator, branches)
    return which, given, outputs


def _set_branches(operator: Any, branches: Sequence[Any]) -> None:
    operator.set_then_body(branches[0])
    operator.set_else_body(branches[1])


def _stand_in(branch: Any) -> Any:
    """Return a model that has a branch's inputs and as many outputs, and nothing between.

    An `If` infers all types in its branches, and in theirs, whenever it is given an input or an
    output, with Python's lock held: 0.4 s in all with bodies of 6 layers, and nothing is served
    meanwhile. So it gets them with branches that are empty; types are inferred once, at the end.
    """
    given = [
        opset13.parameter(own.get_partial_shape(), own.get_element_type())
        for own in branch.get_parameters()
    ]
    return openvino.Model(
        [
            opset13.result(opset13.constant(0, own.get_output_element_type(0)))
            for own in branch.get_results()
        ],
        given,
    )


def _branch(bodies: Sequence[Any], first: int, end: int) -> Any:
    which, given, results = _choice(bodies, first, end)
    return openvino.Model([opset13.result(result) for result in results], [which, *given])


def _freed(body: Any) -> tuple[list[Any], list[Any]]:
    """Return parameters of free sizes in place of a body's, and its outputs.

    An `If` gives the sizes of what it is given to its branches, so each fixes them itself; a body
    of free sizes takes them.
    """
    given = []
    for own in body.get_parameters():
        if own.get_partial_shape().is_dynamic:
            given.append(own)
            continue
        shape = own.get_output_shape(0)
        free = opset13.parameter(openvino.PartialShape([-1] * len(shape)), own.get_element_type())
        sized = opset13.reshape(free, np.array([*shape], np.int64), special_zero=False)
        for reader in own.output(0).get_target_inputs():
            reader.replace_source_output(sized.output(0))
        given.append(free)
    return given, [result.input_value(0) for result in body.get_results()]
