"""What an offline model says about itself: tensors, and which shapes it was compiled for.

An `.om` file has one shape, or *gears*: a list of shapes of which one is chosen before each run
through one more input, or dimensions that vary freely within ranges.
Source: CANN, "dynamic batch, image size and dims" and aclmdlGetOutputNameByIndex (names).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from ge_backend.engines.acl.codes import acl_type
from ge_backend.engines.acl.gear_order import cut_gears, gear_order
from ge_backend.engines.acl.models import AclModels
from ge_backend.errors import ModelError, Unsupported
from ge_backend.model.files.aipp_file import Block, image_dims
from ge_backend.tensors import DataType, Shape

__all__ = ["UNKNOWN_RANK", "Description", "Gears", "Tensor", "read_description"]

# What ACL says of a tensor that may have any number of dimensions.
# Source: hicann/ge api/python/ge/ge/graph/tensor_desc.py, UNKNOWN_DIM_NUM.
UNKNOWN_RANK = (-2,)
GEAR_INPUT = "ascend_mbatch_shape_data"
AIPP_INPUT = "ascend_dynamic_aipp_data"
# Models made from ONNX call an output `node:0:name`.
_OUTPUT_NAME = re.compile(r".*:\d+:(?P<name>.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One input or output.

    Attributes:
        dims: -1 where it varies; `UNKNOWN_RANK` where their number does, too.
        nbytes: of the largest shape; 0 where that is not known.
    """

    name: str
    dtype: DataType
    dims: Shape
    nbytes: int


@dataclass(frozen=True, slots=True)
class Gears:
    """The shapes that a model was compiled for, beside which it runs none.

    Attributes:
        shapes: of all inputs, one entry per gear.
        values: by which a gear is selected: a batch size, a (height, width), or all dims.
        select: the call that selects one, with a model's id, its dataset, the index of the input
            for it, and a value; None where there is one shape.
    """

    shapes: tuple[Mapping[str, Shape], ...]
    values: Sequence[Any] = ()
    select: Callable[[int, int, int, Any], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One model.

    Attributes:
        inputs: those that carry data, in the model's order.
        gears: of a model with one shape, that.
        gear_at: the index of the input that chooses the gear, among all; -1 where there is none.
        gear_bytes: its size.
        aipp_at: the index of the input that takes the parameters of image preprocessing; -1 where
            there is none.
        aipp_bytes: its size.
        freely: dimensions vary within ranges: there are no gears.
        limits: per input the largest size of each dimension, -1 for none; only if they vary freely,
            and () where this CANN does not say it.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    gears: Gears
    gear_at: int
    gear_bytes: int
    aipp_at: int
    aipp_bytes: int
    freely: bool
    limits: Mapping[str, Shape]


def read_description(
    models: AclModels,
    description: int,
    path: str,
    order: Sequence[str] = (),
    aipp: Block | None = None,
) -> Description:
    """Return what ACL's description of a loaded model says.

    `order` is that in which its gears list its inputs, empty where that is not known; `aipp` is
    what is done to its images, where it is to be told that.

    Raises:
        ModelError: it has tensors that Triton does not carry, or two outputs of one name, or gears
            that fit its inputs in several ways or in none.
        Unsupported: it has inputs that the backend does not give.
    """
    names = models.input_names(description)
    aipp_at = names.index(AIPP_INPUT) if AIPP_INPUT in names else -1
    if (aipp_at < 0) != (aipp is None):
        raise Unsupported(
            f"{path} takes the parameters of its image preprocessing at run time (dynamic AIPP): "
            "name a file that has them in the parameter 'npu.aipp', or compile it with static AIPP"
            if aipp is None
            else f"{path} has no dynamic AIPP; remove the parameter 'npu.aipp'"
        )
    gear_at = names.index(GEAR_INPUT) if GEAR_INPUT in names else -1
    inputs = tuple(
        _input(models, description, at, name, path)
        for at, name in enumerate(names)
        if at not in {gear_at, aipp_at}
    )
    if aipp is not None:
        inputs = _with_images(inputs, aipp, path)
    outputs = _outputs(models, description, path)
    has_gears = gear_at >= 0
    one_shape = Gears(({tensor.name: tensor.dims for tensor in inputs},))
    freely = not has_gears and any(dim < 0 for t in (*inputs, *outputs) for dim in t.dims)
    return Description(
        inputs=inputs,
        outputs=outputs,
        gears=_gears(models, description, inputs, order, path) if has_gears else one_shape,
        gear_at=gear_at,
        gear_bytes=models.input_bytes(description, gear_at) if has_gears else 0,
        aipp_at=aipp_at,
        aipp_bytes=models.input_bytes(description, aipp_at) if aipp is not None else 0,
        freely=freely,
        limits={
            tensor.name: models.input_limits(description, at) for at, tensor in enumerate(inputs)
        }
        if freely
        else {},
    )


def _gears(
    models: AclModels, description: int, inputs: Sequence[Tensor], order: Sequence[str], path: str
) -> Gears:
    """Return the gears of a model that has some; only one of the three kinds answers."""

    def filled(values: Iterable[Iterable[int]]) -> tuple[Mapping[str, Shape], ...]:
        return tuple({t.name: _filled(t.dims, value) for t in inputs} for value in values)

    if batches := models.batch_gears(description):
        return Gears(filled(map(repeat, batches)), batches, models.choose_batch)
    if sizes := models.image_gears(description):
        return Gears(filled(sizes), sizes, models.choose_image)
    gears = models.dims_gears(description)
    dims = {tensor.name: tensor.dims for tensor in inputs}
    cut = cut_gears(dims, gears, gear_order(dims, gears, order, path))
    shapes = tuple({name: cut[name][at] for name in dims} for at in range(len(gears)))
    return Gears(shapes, gears, models.choose_dims)


def _filled(dims: Shape, values: Iterable[int]) -> Shape:
    left = iter(values)
    return tuple(next(left) if dim < 0 else dim for dim in dims)


def _with_images(inputs: tuple[Tensor, ...], aipp: Block, path: str) -> tuple[Tensor, ...]:
    """Return the inputs with the images' own size, which the model leaves open.

    Source: hicann/ge compiler/graph/preprocess/insert_op/aipp_op.cc (N, -1, -1, -1).
    """
    rank = int(aipp.get("related_input_rank", "0"))
    if rank >= len(inputs) or not inputs[rank].dims:
        raise ModelError(f"{path}: related_input_rank is {rank}, which is no image of its inputs")
    images = inputs[rank]
    taken = replace(images, dims=(images.dims[0], *image_dims(aipp, 0, 0, path)))
    return (*inputs[:rank], taken, *inputs[rank + 1 :])


def _input(models: AclModels, description: int, at: int, name: str, path: str) -> Tensor:
    return Tensor(
        name=name,
        dtype=_dtype(models.input_type(description, at), name, path),
        dims=models.input_dims(description, at),
        nbytes=models.input_bytes(description, at),
    )


def _outputs(models: AclModels, description: int, path: str) -> tuple[Tensor, ...]:
    whole = models.output_names(description)
    short = [match["name"] if (match := _OUTPUT_NAME.fullmatch(name)) else name for name in whole]
    names = short if len(set(short)) == len(short) else whole
    return tuple(
        Tensor(
            name=name,
            dtype=_dtype(models.output_type(description, at), name, path),
            dims=models.output_dims(description, at),
            nbytes=models.output_bytes(description, at),
        )
        for at, name in enumerate(names)
    )


def _dtype(number: int, name: str, path: str) -> DataType:
    dtype = acl_type(number)
    if dtype is None:
        raise ModelError(
            f"{path}: {name!r} has the ACL data type {number}, which Triton does not carry; "
            "let the model begin and end with a cast"
        )
    return dtype
