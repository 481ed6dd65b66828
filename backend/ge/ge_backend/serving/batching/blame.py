"""Whose fault a failed run is: an index or a length that the model does not take is the client's.

Engines find such a value while they run, and say so in words of their own. What they say is read
here, once it is known which request it was; everything else stays the graph's failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ge_backend.errors import GeError, GraphFailed, InvalidRequest
from ge_backend.model.layout.layout import Layout
from ge_backend.serving.batching.request import Request
from ge_backend.tensors import Shape

__all__ = ["about_shapes", "blamed", "limit_in"]

# ONNX Runtime's Gather and its kin, an embedding among them.
_INDEX = re.compile(r"idx=(-?\d+) must be within the inclusive range \[(-?\d+),(-?\d+)\]")
# torch's embedding and index_select, and others' that do not name both the index and the range.
_UNNAMED_INDEX = re.compile(
    r"index out of range in self|index \d+ is out of bounds|indices values of GatherElement exceed|"
    r"points to non-existing|invalid ind(?:ex|ice) found|Out of range value in index tensor"
)
# ONNX Runtime's and torch's elementwise operators; a table of positions is one side.
_SIZES = (
    re.compile(r"broadcast an axis by a dimension other than 1\. (\d+) by (\d+)"),
    re.compile(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)"),
)
# ONNX Runtime's on CUDA, which counts dimensions of the operand that it names.
# Source: onnxruntime, core/providers/cuda/math/binary_elementwise_ops.cc, ComputeOutputShape.
_SHAPES = re.compile(
    r"(left|right) operand cannot broadcast on dim (\d+) "
    r"LeftShape: \{([\d,]+)\}, RightShape: \{([\d,]+)\}"
)

# Operators whose inputs do not fit each other or their weights, or that take none so short; guards
# of a torch.export program. OpenVINO validates most operators anew for each size, and takes a
# convolution's negative size for a huge one.
_UNFIT = re.compile(
    # ONNX Runtime
    r"Invalid input shape: \{|[Dd]imension mismatch|cannot be reshaped to the requested shape|"
    r"Non concat axis dimensions must match|left operand cannot broadcast|invalid expand shape|"
    r"operands could not be broadcast|Cannot split using values|must be 1 instead of|"
    r"output dimension is negative|to be a multiple of|should not be greater than specified axis|"
    r"Input W must have shape|Invalid bias shape|must match X\.shape|exceeds maximum allowed|"
    r"Input channels C is not equal|"
    # torch
    r"Guard failed: |shapes cannot be multiplied|is invalid for input of size|stack expects each|"
    r"Kernel size can't be greater than actual input size|Sizes of tensors must match except|"
    r"Expected size for first two dimensions|Output size is too small|to have \d+ channels|"
    r"must match the existing size|does not broadcast with|Given normalized_shape|"
    r"running_mean should contain|selected index k out of range|split_sizes to sum exactly|"
    r"Padding size should be less|out of range for tensor of size|to have non-zero size|"
    # OpenVINO
    r"While validating node|Matmul input shapes are incompatible|Incompatible MatMul batch|"
    r"Eltwise shape infer input shapes|conflicts with the reshape pattern|channels must match|"
    r"incompatible with provided dimensions|exceeds the axis dimension|getCurrentMemSizeImp|"
    r"takes from an empty tensor"
)

# What a device says of bytes that are to be a text, and of numbers; it names input and element.
_NOT_TAKEN = ("takes UTF-8 text only", "computes whole numbers in 32 bits")


def blamed(
    error: GraphFailed,
    request: Request,
    layout: Layout,
    *,
    rows: int,
    planned: bool,
    most_rows: int = 0,
) -> GeError:
    """Return the error of a request that alone made a run fail.

    Args:
        error: what the engine said.
        request: the only one of the run.
        layout: of the model.
        rows: how many of it were in the run.
        planned: the run had a shape that was prepared or tried, whose sizes the graph takes.
        most_rows: the most that other runs have had, which were none of the engine's to refuse.
    """
    text = str(error)
    if any(words in text for words in _NOT_TAKEN):
        return InvalidRequest(text)
    index = _INDEX.search(text)
    if index is not None:
        value, least, most = map(int, index.groups())
        return (
            _index(request, layout, value, least, most)
            or (_size(request, layout, most + 1) if most >= 0 else _empty(request, layout))
            or error
        )
    if _UNNAMED_INDEX.search(text):
        spans = [
            f"{name} from {array.min()} to {array.max()}"
            for name, array in request.tensors.items()
            if array.dtype.kind in "iu" and array.size
        ]
        if spans:
            return InvalidRequest(
                "the request holds an index, such as a token's id, that the model has no row for: "
                f"{', '.join(spans)} ({text})"
            )
    limit = limit_in(text)
    refusal = None if planned or limit is None else _size(request, layout, limit)
    free = bool(layout.equal_axes) or not planned
    ours = not free or rows > most_rows or not about_shapes(error)
    return refusal or (error if ours else _shapes(request, text))


def about_shapes(error: GraphFailed) -> bool:
    """Whether an engine says of what it was given that shapes do not fit."""
    text = str(error)
    return limit_in(text) is not None or _UNFIT.search(text) is not None


def limit_in(text: str) -> int | None:
    """Return the longest that an axis can be by what an engine says of one that is too long."""
    index = _INDEX.search(text)
    if index is not None:
        return int(index.group(3)) + 1
    shapes = _SHAPES.search(text)
    if shapes is not None:
        left, right = (tuple(map(int, shape.split(","))) for shape in shapes.groups()[2:])
        own = left if shapes.group(1) == "left" else right
        behind = len(own) - int(shapes.group(2))  # counted from the last one
        return min(shape[-behind] for shape in (left, right) if behind <= len(shape))
    found = (pattern.search(text) for pattern in _SIZES)
    return next((min(map(int, sizes.groups())) for sizes in found if sizes is not None), None)


def _index(
    request: Request, layout: Layout, value: int, least: int, most: int
) -> InvalidRequest | None:
    """Name the input that holds this value, which is out of range, or those: a mask is no index."""
    masks = {item.name for item in layout.inputs if item.made == "mask"}
    found = [
        f"input {name!r} holds {value} at {np.argwhere(array == value)[0].tolist()}"
        for name, array in request.tensors.items()
        if array.dtype.kind in "iu" and name not in masks and bool(np.any(array == value))
    ]
    if not found:
        return None
    return InvalidRequest(f"{' and '.join(found)}; the model takes {least} to {most}")


def _size(request: Request, layout: Layout, limit: int) -> InvalidRequest | None:
    """Name the axis that is longer than this, and an input that has it."""
    return _axis(request.sizes, layout, lambda size: size > limit, f"at most {limit}")


def _empty(request: Request, layout: Layout) -> InvalidRequest | None:
    """Name the axis of which the graph takes a place, and there is none."""
    sizes = (*request.sizes, *request.equal_sizes)
    return _axis(sizes, layout, lambda size: size == 0, "at least 1")


def _axis(
    sizes: Shape, layout: Layout, wrong: Callable[[int], bool], takes: str
) -> InvalidRequest | None:
    """Name the first axis of a wrong size, of the padded ones and, where given, those behind."""
    for number, (axis, size) in enumerate(
        zip((*layout.axes, *layout.equal_axes), sizes, strict=False)
    ):
        if wrong(size):
            names = [repr(one.name) for one in layout.inputs if number in one.axes and not one.made]
            return InvalidRequest(
                f"axis {axis!r} of {' and '.join(names) or 'the inputs'} is {size} long; the model "
                f"takes {takes}"
            )
    return None


def _shapes(request: Request, text: str) -> InvalidRequest:
    """Name the shapes of a request that the graph does not take where it has taken others."""
    shapes = [f"{name!r} {list(array.shape)}" for name, array in request.tensors.items()]
    return InvalidRequest(
        f"the model does not take {' beside '.join(shapes)}, where it has taken other sizes; send "
        f"longer ones, or such as belong together ({text})"
    )
