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
        of free sizes where these differ. Outputs are in the bodies' order.
    """
    parameters = zip(*(body.get_parameters() for body in bodies), strict=True)
    taken = [_common([own.get_partial_shape() for own in same]) for same in parameters]
    made = _branch([_taking(taken, body) for body in bodies], 0, len(bodies))
    made.validate_nodes_and_infer_types()
    return made


def _choice(bodies: Sequence[Any], first: int, end: int) -> tuple[Any, list[Any], list[Any]]:
    """Return parameters and outputs that compute one of the bodies from `first` to before `end`."""
    which = opset13.parameter([], Type.i32)
    if end - first == 1:
        alone = bodies[first]
        return which, alone.get_parameters(), [own.input_value(0) for own in alone.get_results()]
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


def _common(shapes: Sequence[Any]) -> Any:
    """Return what is the same in shapes of one input; a size that differs is free.

    Some operators are computed only where the last sizes of what they take are known.
    """
    sizes = zip(*shapes, strict=True)
    return openvino.PartialShape(
        [same[0] if same.count(same[0]) == len(same) else -1 for same in sizes]
    )


def _taking(shapes: Sequence[Any], body: Any) -> Any:
    """Return a body that takes inputs of these shapes.

    An `If` gives the sizes of what it is given to its branches, so each fixes them itself; a body
    of free sizes takes them.
    """
    given = []
    for own, shape in zip(body.get_parameters(), shapes, strict=True):
        if own.get_partial_shape().is_dynamic or own.get_partial_shape() == shape:
            given.append(own)
            continue
        sizes = np.array([*own.get_output_shape(0)], np.int64)
        free = opset13.parameter(shape, own.get_element_type())
        sized = opset13.reshape(free, sizes, special_zero=False)
        for reader in own.output(0).get_target_inputs():
            reader.replace_source_output(sized.output(0))
        given.append(free)
    return openvino.Model(body.get_results(), given)
